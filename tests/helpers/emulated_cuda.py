"""An emulated GPU: tensors that say cuda:0 and keep their numbers in CPU memory.

For machines without a GPU, with torch's CUDA build. Operators compute, so results can be compared
bit for bit. Whatever mixes devices, waits for the device, has no CUDA kernel, or gives other bits
each time although that was ruled out, raises as on a GPU. In the backward pass, an error ends the
process.

To C++ the tensors are of a back end written in Python (PrivateUse1), because autograd wants a
device guard and streams, which CUDA has only with a driver. It is for a process of its own: call
`prepare` before the first backward pass.
"""

import contextlib
import threading
import traceback
from types import SimpleNamespace
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
STAND_IN = "standin"
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
MIB = 2**20

# What depends on data in its shape or as a Python value: the host has to wait
WAITS = {
    aten._local_scalar_dense.default: "item(), float(), int() or bool() of a tensor",
    aten.is_nonzero.default: "bool() of a tensor",
    aten.equal.default: "torch.equal",
    aten.nonzero.default: "nonzero, or indexing by a mask",
    aten.masked_select.default: "masked_select",
    aten.bincount.default: "bincount",
    aten._unique2.default: "unique",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
# Of the operators that torch's documentation lists for use_deterministic_algorithms
OTHER_BITS = {
    aten._adaptive_avg_pool2d_backward.default,
    aten.adaptive_max_pool2d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.grid_sampler_2d_backward.default,
    aten.nll_loss2d_forward.default,
    aten.histc.default,
    aten.kthvalue.default,
}
LOWER_PRECISION = ("conv2d", "linear", "matmul", "mm", "addmm", "bmm")  # of autocast's list


class HostSync(RuntimeError):
    """The host would wait for the device here."""


class CudaTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        assert type(inner) is torch.Tensor and inner.device == CPU, (type(inner), inner.device)
        with torch.inference_mode(False):  # or a view of a tensor from outside could not be made
            self = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                layout=inner.layout,
                device=f"{STAND_IN}:0",
            )
        self.inner = inner
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return current().run(func, args, kwargs or {})

    def get_device(self):
        return 0

    def untyped_storage(self):  # to tell which tensors share memory
        return self.inner.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __repr__(self):
        return f"CudaTensor({self.inner!r})"

    def __reduce_ex__(self, protocol):  # torch.save
        current().waits("torch.save")
        saved.add(self.inner.untyped_storage()._cdata)
        return self.inner.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return CudaTensor(self.inner.detach().clone()).requires_grad_(self.requires_grad)


saved = set()  # storages of which a file must say that they were on cuda:0
active = []  # GPUs


def current():
    assert active, "a tensor outlived its GPU"
    return active[-1]


class Gpu(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.is_strict = False
        self.syncs = []  # (what, where)
        self.log = None  # of the results of operators, while recording
        self.lock = threading.Lock()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def waits(self, what):
        frames = [f for f in traceback.extract_stack() if "/ressmooth/" in f.filename]
        place = frames[-1] if frames else None
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}" if place else ""
        self.syncs.append((what, where))
        if self.is_strict:
            raise HostSync(f"the host waits for the GPU: {what} ({where})")

    @contextlib.contextmanager
    def no_sync(self):
        """As torch.cuda.set_sync_debug_mode("error"); copies of pageable memory count too."""
        self.is_strict = True
        try:
            yield
        finally:
            self.is_strict = False

    @contextlib.contextmanager
    def recording(self):
        """Yield a list that gets the operators that run on the device, with their results."""
        self.log = log = []
        try:
            yield log
        finally:
            self.log = None

    def run(self, func, args, kwargs):
        flat = tree_flatten((args, kwargs))[0]
        ours = [t for t in flat if isinstance(t, CudaTensor)]
        asked = kwargs.get("device")
        asked = torch.device(asked) if asked is not None else None
        on_gpu = asked.type in ("cuda", STAND_IN) if asked is not None else bool(ours)
        if not ours and not on_gpu:
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(COMPOSITE):  # arrives whole under inference_mode
            with self:
                return func.decompose(*args, **kwargs)
        check_kernel(func)
        check_generator(kwargs.get("generator"))
        if func is aten.copy_.default:
            return self._copy(*args)
        if func is aten._to_copy.default:
            if asked is not None and bool(ours) != on_gpu:
                self.waits("copy to the host" if ours else "copy of pageable memory to the GPU")
        elif ours:
            self._check_devices(func, args, flat)
        if ours and func in WAITS:
            self.waits(WAITS[func])
        if ours and func in INDEXING and any(is_mask(t) for t in args[1]):
            self.waits("indexing by a mask")
        plain_args, plain_kwargs = tree_map(inner_of, (args, kwargs))
        if asked is not None:
            plain_kwargs["device"] = CPU
        out = func(*plain_args, **plain_kwargs)
        self._note(func, out)
        if not on_gpu or func is aten._local_scalar_dense.default:
            return out
        wrapped = tree_map(lambda x: CudaTensor(x) if type(x) is torch.Tensor else x, out)
        if not ours or func is aten._to_copy.default:
            return wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _copy(self, into, source, *_):
        if isinstance(into, CudaTensor) != isinstance(source, CudaTensor):
            self.waits("copy_ between host and GPU")
        inner_of(into).copy_(inner_of(source))
        self._note(aten.copy_.default, into)
        return into

    def _check_devices(self, func, args, flat):
        for tensor in flat:
            if not isinstance(tensor, torch.Tensor) or isinstance(tensor, CudaTensor):
                continue
            if tensor.dim() == 0 and func not in (aten.cat.default, aten.stack.default):
                continue  # a number
            if func in INDEXING and isinstance(args[0], CudaTensor) and tensor is not args[0]:
                self.waits("indices on the CPU")
                continue
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({func}: a CPU tensor of shape {tuple(tensor.shape)})"
            )

    def _note(self, func, out):
        if self.log is not None:
            with self.lock:  # the backward pass has a thread of its own
                self.log.append((func, out))


def check_kernel(func):
    """Raise what torch raises if it has no kernel for CUDA, or only one that is ruled out."""
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CUDA"):
        raise NotImplementedError(f"Could not run '{func.name()}' with the 'CUDA' backend")
    if func in OTHER_BITS and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"{func.name()} does not have a deterministic implementation")


def check_generator(generator):
    if generator is not None and generator.device.type != "cuda":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def is_mask(tensor):
    return isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.bool, torch.uint8)


def inner_of(x):
    return x.inner if isinstance(x, CudaTensor) else x


libraries = []  # kept alive: what they register ends with them


def prepare():
    """Make torch's C++ know the stand-in. Once per process, before its first backward pass."""
    assert torch.version.cuda and not torch.cuda.is_available(), "for a CUDA build without a GPU"
    from torch.utils import backend_registration as registration

    class Module(registration._DummyBackendModule):
        def get_amp_supported_dtype(self):
            return [torch.bfloat16, torch.float16]

    registration._setup_privateuseone_for_python_backend(STAND_IN, backend_module=Module())
    torch._C._ensureCUDADeviceGuardSet()  # for .to("cuda"): a guard that does nothing
    fallback, casts = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    libraries.extend((fallback, casts))
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in LOWER_PRECISION:
        casts.impl(name, _casting(getattr(aten, name).default), "AutocastPrivateUse1")


def _casting(func):
    key = torch._C.DispatchKey.AutocastPrivateUse1

    def call(*args, **kwargs):
        dtype = torch.get_autocast_dtype(STAND_IN)

        def lower(x):
            return x.to(dtype) if isinstance(x, CudaTensor) and x.is_floating_point() else x

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return func(*tree_map(lower, args), **tree_map(lower, kwargs))

    return call


def _autocast(device_type, *args, **kwargs):
    device_type = STAND_IN if device_type == "cuda" else device_type
    return torch.amp.autocast_mode.autocast(device_type, *args, **kwargs)


@contextlib.contextmanager
def gpu(name="NVIDIA Emulated", capability=(8, 0)):
    """Let torch see an emulated GPU. Yield it."""
    from torch.optim import optimizer

    mode, tag = Gpu(), torch.serialization.location_tag
    types = [*optimizer._foreach_supported_types, CudaTensor]
    cuda = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: mode.waits("torch.cuda.synchronize"),
        "get_device_name": lambda *_: name,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: SimpleNamespace(uuid="0"),
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_90"],
        "set_per_process_memory_fraction": lambda *_: None,
        "max_memory_reserved": lambda *_: 512 * MIB,
        "mem_get_info": lambda *_: (1024 * MIB, 8192 * MIB),
        "empty_cache": lambda: None,
    }
    patches = [mock.patch.object(torch.cuda, key, value) for key, value in cuda.items()]
    patches.append(mock.patch.object(torch, "autocast", _autocast))
    patches.append(mock.patch.object(optimizer, "_foreach_supported_types", types))
    patches.append(
        mock.patch.object(
            torch.serialization,
            "location_tag",
            lambda storage: "cuda:0" if storage._cdata in saved else tag(storage),
        )
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        # a module's .to makes new parameters: .data = would keep the old numbers
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        stack.callback(torch.use_deterministic_algorithms, False)
        active.append(mode)
        stack.callback(active.pop)
        stack.enter_context(mode)
        yield mode

"""The network of a recorded run with its best weights, without training."""

from pathlib import Path

from safetensors.torch import load as decode_weights
from torch import Tensor, nn

from ressmooth.config import RunConfig
from ressmooth.plugins import Plugins
from ressmooth.training import checkpoint
from ressmooth.training.data import kept_generators
from ressmooth.training.streaming import StreamNormaliser
from ressmooth.training.trainer import Trainer

# Neither a GPU nor pretrained weights are needed to build a network.
ANYWHERE = {"device": "cpu", "compile": False, "threads": 0, "weights": "none"}


class Classifier(nn.Module):
    """A network with the normalisation that it was trained with.

    Takes images, uint8 [N, H, W, C], and returns logits, float32 [N, classes].
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.image = trainer.image
        self.normalise, self.network = trainer.normalise, trainer.model

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(self.normalise, StreamNormaliser):
            images = images.permute(0, 3, 1, 2)
        logits: Tensor = self.network(self.normalise(images))
        return logits


def load_weights(path: Path, sha256: str | None) -> dict[str, Tensor]:
    """Return the weights in a safetensors file whose SHA-256 is given."""
    return decode_weights(checkpoint.read(path, sha256))


def load_classifier(
    config: RunConfig, weights: dict[str, Tensor], data: Path, plugins: Plugins
) -> Classifier:
    """Return a run's classifier on the CPU, in evaluation mode. Reads the run's data set."""
    with kept_generators():  # building a network draws random weights
        trainer = Trainer(config.model_copy(update=ANYWHERE), data, plugins)
    trainer.model.load_state_dict(weights)
    return Classifier(trainer).eval()

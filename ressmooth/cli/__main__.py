from ressmooth.cli import main

main(prog_name="ressmooth")

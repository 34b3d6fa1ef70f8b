"""The parts of `gpu_check`: what is compared and measured on a GPU, one file for each."""

"""The platform that a program is compiled for."""

import jax


def platform() -> str:
    """Return the platform of the program that is being traced: "cpu", "gpu" or "tpu".

    The fastest form of a function differs between platforms. Within `jax.set_mesh`, it is the
    platform of the mesh's devices, so that a program can be compiled for devices that this machine
    lacks; elsewhere, of JAX's default devices.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()

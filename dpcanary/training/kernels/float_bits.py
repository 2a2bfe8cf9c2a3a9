"""float32 numbers as their 32 bits, inside compiled loops."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def as_float(_typing_context, bits):
    """The float32 of these 32 bits."""

    def codegen(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def as_bits(_typing_context, number):
    """The 32 bits of this float32."""

    def codegen(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), codegen

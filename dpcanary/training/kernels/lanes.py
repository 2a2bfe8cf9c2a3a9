"""Vectors of 16 numbers inside compiled loops.

A compiled loop over an array is turned into vector instructions, but sums over such loops are then
written to memory and read again. A variable that holds 16 numbers stays in a register.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model


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


WIDTH = 16  # one register of AVX-512; elsewhere the compiler takes several smaller ones
_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)
_INDEX = ir.IntType(32)


class _Lanes(types.Type):
    """Numba's type of 16 float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    """How LLVM holds them."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


@intrinsic
def load(_typing_context, array, first):
    """The numbers of a contiguous float32 array from `first` on; bounds are not checked."""

    def codegen(context, builder, signature, arguments):
        read = builder.load(_pointer(context, builder, signature, arguments))
        read.align = 4
        return read

    return _LANES(array, first), codegen


@intrinsic
def store(_typing_context, array, first, lanes):
    """Writes 16 numbers into a contiguous float32 array; bounds are not checked."""

    def codegen(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments)
        builder.store(arguments[2], pointer).align = 4
        return context.get_dummy_value()

    return types.void(array, first, lanes), codegen


@intrinsic
def filled(_typing_context, number):
    """A vector that holds one float32 number 16 times."""

    def codegen(_context, builder, _signature, arguments):
        return _filled(builder, arguments[0])

    return _LANES(types.float32), codegen


@intrinsic
def add_product(_typing_context, total, factor, lanes):
    """`total` plus a float32 factor times `lanes`, rounded once."""

    def codegen(_context, builder, _signature, arguments):
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
        return builder.call(fused, [_filled(builder, arguments[1]), arguments[2], arguments[0]])

    return _LANES(total, types.float32, lanes), codegen


@intrinsic
def counted(_typing_context, first):
    """The float32 numbers first, first + 1, ..., first + 15."""

    def codegen(_context, builder, _signature, arguments):
        steps = ir.Constant(_VECTOR, [float(lane) for lane in range(WIDTH)])
        return builder.fadd(_filled(builder, arguments[0]), steps)

    return _LANES(types.float32), codegen


@intrinsic
def where_larger(_typing_context, new, old, chosen, other):
    """`chosen` where `new` is larger than `old` or is NaN, else `other`."""

    def codegen(_context, builder, _signature, arguments):
        larger = builder.fcmp_ordered(">", arguments[0], arguments[1])
        either = builder.or_(larger, builder.fcmp_unordered("uno", arguments[0], arguments[0]))
        return builder.select(either, arguments[2], arguments[3])

    return _LANES(new, old, chosen, other), codegen


def _pointer(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), _VECTOR.as_pointer())


def _filled(builder, number):
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, number, _INDEX(0))
    return builder.shuffle_vector(first, empty, ir.VectorType(_INDEX, WIDTH)([0] * WIDTH))

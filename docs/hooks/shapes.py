"""Keep jaxtyping's shapes as they are written: Griffe reads `Float[Array, "point *rest"]` as a product."""

from typing import Any

import griffe

ARRAYS = {"Array", "Bool", "Float", "Int", "Key", "Shaped", "UInt", "UInt32"}


class Shapes(griffe.Extension):
    """Shows the shapes in the signatures of functions as strings."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite what `func` takes and returns."""
        for parameter in func.parameters:
            parameter.annotation = _with_shape(parameter.annotation)
        func.returns = _with_shape(func.returns)


def _with_shape(annotation: Any) -> Any:
    """The annotation, in which the shape of every array is the string that it was."""
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) in ARRAYS:
        array, shape = annotation.slice.elements
        if isinstance(shape, griffe.ExprBinOp):
            annotation.slice.elements = [array, repr(f"{shape.left} *{shape.right}").replace("'", '"')]
    elif isinstance(annotation, griffe.ExprBinOp):
        _with_shape(annotation.left)
        _with_shape(annotation.right)
    elif isinstance(annotation, griffe.ExprSubscript):
        _with_shape(annotation.slice)
    elif isinstance(annotation, griffe.ExprTuple):
        for element in annotation.elements:
            _with_shape(element)
    return annotation

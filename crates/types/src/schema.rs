//! JSON schemas of types that serialize themselves.

use utoipa::Number;
use utoipa::openapi::schema::{Object, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

/// Schema of a value that is an integer or a text.
pub(crate) fn integer_or_text(description: &str, integer: Object, text: Object) -> RefOr<Schema> {
    OneOfBuilder::new().item(integer).item(text).description(Some(description)).into()
}

/// Schema of a 64-bit integer, from this minimum to the largest unsigned one.
pub(crate) fn integer(minimum: isize) -> Object {
    let mut integer = Object::with_type(Type::Integer);
    integer.minimum = Some(Number::Int(minimum));
    integer.maximum = Some(Number::UInt(usize::MAX));
    integer
}

/// Schema of a text with a pattern.
pub(crate) fn text(pattern: &str) -> Object {
    let mut text = Object::with_type(Type::String);
    text.pattern = Some(pattern.to_owned());
    text
}

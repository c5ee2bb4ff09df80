//! Schemas of fields that are read as engines read them, in several forms.

use serde_json::json;
use utoipa::PartialSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, Object, ObjectBuilder, Schema, SchemaType, Type};

/// Texts of an integer of up to 18 digits that is -1 or more.
const INTEGER_TEXT: &str = r"^\s*(\+?0*[0-9]{1,18}|-0*1)(\.0+)?\s*$";

/// Texts of an integer of up to 18 digits.
const SIGNED_INTEGER_TEXT: &str = r"^\s*[+-]?[0-9]{1,18}(\.0+)?\s*$";

/// Texts of a truth value, in any case.
const BOOL_TEXT: &str =
    "^([Tt]([Rr][Uu][Ee])?|[Ff]([Aa][Ll][Ss][Ee])?|[Yy]([Ee][Ss])?|[Nn][Oo]?|[Oo][Nn]|[Oo][Ff][Ff]|[01])$";

/// A text or tokens, or a list with one of them.
pub(crate) fn prompt() -> Schema {
    let text = || typed(Type::String).build();
    // A token may also be a text in a list with tokens of other types. No schema can express that for a list.
    let token =
        || AnyOfBuilder::new().item(<u32 as PartialSchema>::schema()).item(typed(Type::Boolean).build()).build();
    let tokens = || ArrayBuilder::new().items(RefOr::T(Schema::AnyOf(token())));
    let one = |of: ArrayBuilder| of.min_items(Some(1)).max_items(Some(1)).build();
    let forms = AnyOfBuilder::new().item(text()).item(tokens().build());
    let lists = forms
        .item(one(ArrayBuilder::new().items(text())))
        .item(one(ArrayBuilder::new().items(RefOr::T(Schema::Array(tokens().build())))));
    let all = lists.item(typed(Type::Null).build());
    all.description(Some("The prompt as a text, or as tokens; also a list with one of them.")).into()
}

/// A number of tokens, or -1.
pub(crate) fn lax_token_count() -> Schema {
    let number = typed(Type::Integer).minimum(Some(-1_i64)).maximum(Some(i64::MAX)).build();
    let text = typed(Type::String).pattern(Some(INTEGER_TEXT)).build();
    any_of(
        [number, typed(Type::Boolean).build(), text],
        "Number of tokens to keep; none or -1 keeps all. They are the \
        last ones, after the one that begins a sequence, unless `truncation_side` says which.",
    )
}

/// A number of instances.
pub(crate) fn lax_top_k() -> Schema {
    let text = typed(Type::String).pattern(Some(SIGNED_INTEGER_TEXT)).build();
    any_of(
        [typed(Type::Integer).build(), typed(Type::Boolean).build(), text],
        "Number of instances with the highest scores to return; all if it is not above 0, as in a request with the sampling \
        parameter of this name.",
    )
}

/// A truth value.
pub(crate) fn lax_bool() -> Schema {
    let number = typed(Type::Integer).enum_values(Some([json!(0), json!(1)])).build();
    let text = typed(Type::String).pattern(Some(BOOL_TEXT)).build();
    any_of([typed(Type::Boolean).build(), number, text], "Whether a text is tokenized with special tokens.")
}

fn any_of(forms: [Object; 3], description: &str) -> Schema {
    let forms = forms.into_iter().chain([typed(Type::Null).build()]);
    forms.fold(AnyOfBuilder::new().description(Some(description)), AnyOfBuilder::item).into()
}

fn typed(of: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(of))
}

//! Names of the methods of Python's types. An attribute of such a name is the method, not an item of a dict.

/// Methods of `str`.
pub const TEXT_METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Methods of `dict`.
pub const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];
/// Methods of `list`.
pub const LIST_METHODS: [&str; 11] =
    ["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];
/// Methods of `tuple`.
pub const TUPLE_METHODS: [&str; 2] = ["count", "index"];

/// Whether `str`, `dict`, `list` or `tuple` has a method of this name.
pub(crate) fn is_method_name(name: &str) -> bool {
    [&TEXT_METHODS[..], &DICT_METHODS, &LIST_METHODS, &TUPLE_METHODS].iter().any(|names| names.contains(&name))
}

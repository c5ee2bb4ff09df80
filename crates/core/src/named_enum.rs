//! Enums whose variants have names.

/// Declares an enum without fields, with the name of each variant in metrics, JSON or on command lines. A variant has no attributes but its
/// documentation, which describes it in the reference as well, `#[default]` and then `#[serde(…)]`.
///
/// ```
/// flash_indexer_core::named_enum! {
///     /// Side of a road.
///     #[derive(Debug, PartialEq)]
///     pub enum Side {
///         /// The left one.
///         Left = "left",
///         /// The right one.
///         Right = "right",
///     }
/// }
/// assert_eq!(Side::ALL.map(Side::as_str), ["left", "right"]);
/// assert_eq!(Side::DESCRIPTIONS[0], ("left", "The left one."));
/// assert_eq!(Side::named("right"), Some(Side::Right));
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $Enum:ident {
            $($(#[doc = $documentation:literal])* $(#[default $($none:tt)*])? $(#[serde($($serde:tt)+)])?
                $Variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $Enum {
            $($(#[doc = $documentation])* $(#[default $($none)*])? $(#[serde($($serde)+)])? $Variant,)+
        }

        impl $Enum {
            /// All of them, in the order of their declaration.
            #[allow(dead_code, reason = "not every enum is listed")]
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Their names, each with the text of its documentation.
            #[allow(dead_code, reason = "not every enum is described elsewhere")]
            $visibility const DESCRIPTIONS: [(&'static str, &'static str); Self::ALL.len()] =
                [$(($name, concat!($($documentation),*).trim_ascii())),+];

            /// Its name in metrics, JSON and on command lines.
            #[must_use]
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }

            /// The one with this name.
            #[allow(dead_code, reason = "not every enum is read")]
            #[must_use]
            $visibility fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$Variant),)+
                    _ => None,
                }
            }
        }
    };
}

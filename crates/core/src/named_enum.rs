//! Enums whose variants have names.

/// Declares an enum without fields, with the name of each variant in metrics, JSON or on command lines.
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
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $Enum:ident {
            $($(#[$variant_attribute:meta])* $Variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $Enum {
            $($(#[$variant_attribute])* $Variant,)+
        }

        impl $Enum {
            /// All of them, in the order of their declaration.
            #[allow(dead_code, reason = "not every enum is listed")]
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Its name in metrics, JSON and on command lines.
            #[must_use]
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }
    };
}

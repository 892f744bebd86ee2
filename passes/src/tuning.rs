//! Numbers and habits that decide what is tried: declared once each, with the unit, what it is for and what shows that it
//! is needed; and how one of them is switched off to see what it is worth. None can make a result wrong: what is
//! written is proved whatever they are.

/// Declares a struct of such numbers, each with what it is when nothing is to come of it, and the constant that holds them.
/// In a build for the ablation that is read where it stands, so that one can be switched off when the program starts.
macro_rules! tuning {
    ($(#[$of:meta])* $name:ident as $held:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $value:expr, off $off:expr;)*
    }) => {
        $(#[$of])*
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $field: $type,)*
        }

        impl $name {
            const AS_MEANT: $name = $name { $($field: $value,)* };

            /// What can be switched off.
            #[cfg(feature = "ablation")]
            pub(crate) const NAMES: &'static [&'static str] = &[$(stringify!($field),)*];

            #[cfg(feature = "ablation")]
            fn as_switched() -> $name {
                let mut tuning = $name::AS_MEANT;
                $(if crate::tuning::is_off(stringify!($field)) {
                    tuning.$field = $off;
                })*
                tuning
            }
        }

        #[cfg(not(feature = "ablation"))]
        pub(crate) const $held: $name = $name::AS_MEANT;
        #[cfg(feature = "ablation")]
        pub(crate) static $held: std::sync::LazyLock<$name> =
            std::sync::LazyLock::new($name::as_switched);
    };
}

pub(crate) use tuning;

#[cfg(feature = "ablation")]
static SWITCHED_OFF: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();

#[cfg(feature = "ablation")]
pub(crate) fn is_off(name: &str) -> bool {
    let names = SWITCHED_OFF.get();
    names.is_some_and(|names| names.contains(&name))
}

/// From now on these are off, if nothing was planned or switched off before.
#[cfg(feature = "ablation")]
pub(crate) fn set_off(names: Vec<&'static str>) -> bool {
    SWITCHED_OFF.set(names).is_ok()
}

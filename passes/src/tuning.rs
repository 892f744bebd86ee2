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
                match crate::tuning::switched_off() {
                    $(Some(stringify!($field)) => tuning.$field = $off,)*
                    _ => {}
                }
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
static SWITCHED_OFF: std::sync::OnceLock<&'static str> = std::sync::OnceLock::new();

#[cfg(feature = "ablation")]
pub(crate) fn switched_off() -> Option<&'static str> {
    SWITCHED_OFF.get().copied()
}

/// What can be switched off.
#[cfg(feature = "ablation")]
pub fn names() -> impl Iterator<Item = &'static str> {
    let search = crate::search::tuning::Tuning::NAMES.iter();
    let stages = crate::optimize::tuning::StageTuning::NAMES.iter();
    search.chain(stages).copied()
}

/// Plans without what has this name from now on, if it is called before anything is planned and there is such a thing.
#[cfg(feature = "ablation")]
pub fn switch_off(name: &str) -> bool {
    let found = names().find(|known| *known == name);
    found.is_some_and(|name| SWITCHED_OFF.set(name).is_ok())
}

//! The words of options that take one of a few.

/// Defines a value of the command line that means one of the planner's; after `|` are other words for it.
macro_rules! values {
    ($name:ident for $target:ty { $($variant:ident = $text:literal $(| $other:literal)* => $value:expr),+ $(,)? }) => {
        #[derive(Clone, Copy, clap::ValueEnum)]
        pub(crate) enum $name { $(#[value(name = $text $(, alias = $other)*)] $variant),+ }

        impl From<$name> for $target {
            fn from(value: $name) -> $target {
                match value { $($name::$variant => $value),+ }
            }
        }
    };
}
pub(crate) use values;

//! The four exercises, solved. Try for ten minutes before you look.

pub mod ex1_validate;
pub mod ex2_summarise;
pub mod ex3_peak;
pub mod ex4_compare;

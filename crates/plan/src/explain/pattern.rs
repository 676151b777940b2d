//! Names as they are asked for: whole, cut short, a pattern of `*` and `?`, or a part of the name.

/// What was asked for, in lower case.
pub(super) struct Pattern {
    pub(super) text: String,
}

impl Pattern {
    pub(super) fn of(text: &str) -> Pattern {
        Pattern { text: text.trim().to_lowercase() }
    }

    /// The same anywhere in a name, unless it says itself what stands around it.
    pub(super) fn anywhere(&self) -> Option<Pattern> {
        let is_whole = self.text.is_empty() || self.text.contains(['*', '?']);
        (!is_whole).then(|| Pattern { text: format!("*{}*", self.text) })
    }

    /// Whether a name is this.
    pub(super) fn is(&self, name: &str) -> bool {
        name.to_lowercase() == self.text
    }

    /// Whether a name is this, begins with it, or is of this pattern.
    pub(super) fn fits(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        match self.text.contains(['*', '?']) {
            true => is_of(&self.text, &name),
            false => !self.text.is_empty() && name.starts_with(&self.text),
        }
    }
}

/// Whether a text is of a pattern: `*` stands for any letters, `?` for one. Takes back the last `*` where it took too little.
fn is_of(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut here, mut star) = (0, 0, None);
    while let Some(letter) = text.get(here) {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || wanted == letter => (at, here) = (at + 1, here + 1),
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    (at, here) = (star_at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn letters_stand_for_any() {
        for (pattern, text, fits) in [
            ("a*c", "abc", true),
            ("*", "", true),
            ("a*b*c", "aXbXbYc", true),
            ("a?c", "ac", false),
            ("*x", "xy", false),
        ] {
            assert_eq!(is_of(pattern, text), fits, "{pattern} {text}");
        }
    }
}

//! TOML, with the place of each value.

use super::{DEEPEST, Places, too_deep};
use crate::locate;
use crate::problem::Problem;
use crate::source::Source;
use ::toml::de::{DeArray, DeTable, DeValue};
use serde_json::{Map, Number, Value};

struct Reader<'a> {
    source: &'a Source,
    /// Where each line begins.
    lines: Vec<usize>,
    places: Places,
}

pub(super) fn read(source: &Source) -> Result<(Value, Places), Problem> {
    let text = source.text();
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let cause = format!("not TOML: {}", error.message());
        source.problem(cause).at(source.place_at(at, "")).mend("check that line")
    })?;
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
    let lines = std::iter::once(0).chain(ends).collect();
    let mut reader = Reader { source, lines, places: Places::default() };
    let root = reader.table(table.get_ref(), &mut String::new(), 0)?;
    Ok((Value::Object(root), reader.places))
}

impl Reader<'_> {
    /// Line and column, in bytes of the line.
    fn place(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= at);
        let start = line.checked_sub(1).and_then(|line| self.lines.get(line)).copied().unwrap_or(0);
        (line, at - start + 1)
    }

    fn table(
        &mut self,
        table: &DeTable<'_>,
        pointer: &mut String,
        depth: usize,
    ) -> Result<Map<String, Value>, Problem> {
        let outer = pointer.len();
        let mut values = Map::new();
        for (key, value) in table {
            locate::push_word(pointer, key.get_ref());
            let (line, column) = self.place(value.span().start);
            self.places.put(pointer, line, column);
            if depth >= DEEPEST {
                return Err(too_deep(self.source, line, column));
            }
            values.insert(key.get_ref().to_string(), self.value(value.get_ref(), pointer, depth + 1)?);
            pointer.truncate(outer);
        }
        Ok(values)
    }

    fn value(&mut self, value: &DeValue<'_>, pointer: &mut String, depth: usize) -> Result<Value, Problem> {
        Ok(match value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Integer(number) => {
                let whole = i64::from_str_radix(number.as_str(), number.radix()).ok();
                whole.map_or_else(|| Value::String(number.as_str().to_owned()), Value::from)
            }
            DeValue::Float(number) => {
                let float = number.as_str().parse().ok().and_then(Number::from_f64);
                float.map_or_else(|| Value::String(number.as_str().to_owned()), Value::Number)
            }
            DeValue::Datetime(when) => Value::String(when.to_string()),
            DeValue::Array(list) => Value::Array(self.list(list, pointer, depth)?),
            DeValue::Table(table) => Value::Object(self.table(table, pointer, depth)?),
        })
    }

    /// Values of a list have the list's place.
    fn list(
        &mut self,
        list: &DeArray<'_>,
        pointer: &mut String,
        depth: usize,
    ) -> Result<Vec<Value>, Problem> {
        let Some(first) = list.iter().next() else { return Ok(Vec::new()) };
        if depth >= DEEPEST {
            let (line, column) = self.place(first.span().start);
            return Err(too_deep(self.source, line, column));
        }
        list.iter().map(|value| self.value(value.get_ref(), pointer, depth + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fields, Syntax};
    use super::*;
    use serde_json::json;

    fn fields(text: &str) -> Result<Fields, String> {
        Fields::read(Source::from_text("run.toml", text), Syntax::Toml).map_err(|problem| problem.to_string())
    }

    #[test]
    fn tables_become_keys_with_places() {
        let text = "[training]\nseq_len = 8_192\nlr = 3e-4\ncompile = false\n\n[model]\nflavor = \"8B\"\n";
        let fields = fields(text).unwrap();
        let root = Value::Object(fields.root().clone());
        let training = json!({"seq_len": 8192, "lr": 0.0003, "compile": false});
        assert_eq!(root, json!({"training": training, "model": {"flavor": "8B"}}));
        assert_eq!(fields.place_of("/training/seq_len").to_string(), "2:11 (/training/seq_len)");
        assert_eq!(fields.place_of("/model/flavor").to_string(), "7:10 (/model/flavor)");
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_place() {
        let deep = format!("a = {}{}", "[".repeat(5000), "]".repeat(5000));
        let dotted = format!("{}a = 1\n", "a.".repeat(70));
        for (text, says) in [
            ("[a]\nb = \n", "run.toml:2:"),
            ("a = 1\na = 2\n", "run.toml:2:1: not TOML: duplicate key"),
            (&deep, "run.toml:1:"),
            (&dotted, "nested deeper than 64 levels"),
        ] {
            let said = fields(text).map(|_| ()).unwrap_err();
            assert!(said.contains(says) && said.contains("\n  help: "), "{text}: {said}");
        }
    }
}

//! The best choice for each layer, found exactly.

use super::Choice;

/// An amount in forward, up to the end of the loss, and in backward: autocast keeps its copies of the weights as long,
/// whether or not anything else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Halves<T = u64> {
    pub(super) forward: T,
    pub(super) backward: T,
}

impl<T: Copy> Halves<T> {
    pub(super) fn zip<U: Copy, V>(self, other: Halves<U>, with: impl Fn(T, U) -> V) -> Halves<V> {
        Halves { forward: with(self.forward, other.forward), backward: with(self.backward, other.backward) }
    }
}

/// What a choice changes for one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// How much larger the totals are while the layer runs.
    pub(super) more: Halves<i64>,
    /// Bytes that are not stored on its behalf from its forward to its backward.
    pub(super) saved: Halves,
    /// How much of that is still there while the next layer runs, or is back when its backward does.
    pub(super) in_flight: Halves,
    /// How much larger the totals are while the layer before runs.
    pub(super) before: Halves<i64>,
    /// How much longer the step takes, in theory.
    pub(super) time: u128,
}

/// A layer and what it comes to by choice; nothing where a choice is not open.
#[derive(Debug)]
pub(super) struct Layer {
    /// The largest totals while it runs, were all layers kept.
    pub(super) peak: Halves,
    pub(super) choices: [Option<Figures>; 3],
}

/// What the choices come to.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) layers: Vec<Layer>,
    /// The largest totals between the last layer's forward and its backward, were all layers kept.
    pub(super) between: Halves,
    /// The largest total of all that no choice changes.
    pub(super) elsewhere: u64,
}

/// A way through the first layers that no other one beats.
#[derive(Clone, Copy)]
struct Way {
    saved: Halves,
    time: u128,
    choice: Choice,
    /// The largest totals while the last layer of it runs, but for what the next one changes of them.
    last: Halves,
    in_flight: Halves,
    /// Its place among the ways through one layer less.
    back: usize,
}

const NOTHING: Halves = Halves { forward: 0, backward: 0 };

impl Way {
    const START: Way =
        Way { saved: NOTHING, time: 0, choice: Choice::Keep, last: NOTHING, in_flight: NOTHING, back: 0 };

    /// The same with one more layer.
    fn and(&self, layer: &Layer, choice: Choice, figures: &Figures, back: usize) -> Way {
        let there = layer.peak.zip(self.in_flight, u64::saturating_add).zip(self.saved, u64::saturating_sub);
        let last = there.zip(figures.more, u64::saturating_add_signed);
        Way {
            saved: self.saved.zip(figures.saved, u64::saturating_add),
            time: self.time.saturating_add(figures.time),
            choice,
            last,
            in_flight: figures.in_flight,
            back,
        }
    }

    /// The largest total while its last layer runs and that choice is made for the next one.
    fn peak(&self, next: &Figures) -> u64 {
        let peaks = self.last.zip(next.before, u64::saturating_add_signed);
        peaks.forward.max(peaks.backward)
    }
}

impl Profile {
    /// The choices that stay under a budget for the least time; nothing where none do.
    pub(super) fn cheapest(&self, budget: u64) -> Option<Vec<Choice>> {
        if self.elsewhere > budget {
            return None;
        }
        let mut stages = vec![vec![Way::START]];
        for layer in &self.layers {
            let ways = stages.last().map(Vec::as_slice).unwrap_or_default();
            let mut next = Vec::new();
            for choice in Choice::ALL {
                let Some(figures) = layer.figures(choice) else { continue };
                let through = (0..).zip(ways).filter(|(_, way)| way.peak(&figures) <= budget);
                let longer = through.map(|(back, way)| way.and(layer, choice, &figures, back)).collect();
                next.extend(unbeaten(longer));
            }
            stages.push(next);
        }
        let fits = |way: &&Way| way.peak(&Figures::default()).max(self.between(way)) <= budget;
        let mut way = *stages.last()?.iter().filter(fits).min_by_key(|way| way.time)?;
        let mut choices = Vec::with_capacity(self.layers.len());
        for stage in stages.iter().rev().skip(1) {
            choices.push(way.choice);
            way = *stage.get(way.back)?;
        }
        choices.reverse();
        Some(choices)
    }

    /// The largest total of a choice for each layer.
    pub(super) fn peak(&self, choices: &[Choice]) -> Option<u64> {
        let (mut peak, mut way) = (self.elsewhere, Way::START);
        for (layer, choice) in self.layers.iter().zip(choices) {
            let figures = layer.figures(*choice)?;
            peak = peak.max(way.peak(&figures));
            way = way.and(layer, *choice, &figures, 0);
        }
        Some(peak.max(way.peak(&Figures::default())).max(self.between(&way)))
    }

    fn between(&self, way: &Way) -> u64 {
        let peaks = self.between.zip(way.saved, u64::saturating_sub);
        peaks.forward.max(peaks.backward)
    }
}

impl Layer {
    fn figures(&self, choice: Choice) -> Option<Figures> {
        self.choices.get(choice as usize).copied().flatten()
    }
}

/// The ways that none other beats, all of the same choice for their last layer: none saves as much, holds as little while
/// that layer runs, and takes no longer.
fn unbeaten(mut ways: Vec<Way>) -> Vec<Way> {
    ways.sort_by_key(|way| (way.time, std::cmp::Reverse((way.saved.forward, way.saved.backward))));
    let mut left: Vec<Way> = Vec::new();
    for way in ways {
        let beats = |other: &Way| {
            let saves = other.saved.zip(way.saved, |other, this| other >= this);
            let holds = other.last.zip(way.last, |other, this| other <= this);
            saves.forward && saves.backward && holds.forward && holds.backward
        };
        if !left.iter().any(beats) {
            left.push(way);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use good_lp::{Expression, ProblemVariables, Solution, SolverModel, constraint, microlp, variable};

    /// Figures from a seed, as those of a model are: what is not stored is still there for a layer, what takes time saves.
    fn profile(seed: u64, layers: u64) -> Profile {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut up_to = |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let mut halves = |most| Halves { forward: up_to(most), backward: up_to(most) };
        let mut all = Vec::new();
        for layer in 0..layers {
            let grown = Halves { forward: 100 * layer, backward: 110 * layer };
            let mut choice = |saves: u64, flies: bool| {
                let saved = halves(20).zip(Halves { forward: saves, backward: saves }, |a, b| a + b);
                Figures {
                    more: halves(9).zip(NOTHING, |more, _| i64::try_from(more).unwrap() - 4),
                    saved,
                    in_flight: if flies { saved.zip(halves(5), |a, b| a + b) } else { NOTHING },
                    before: halves(3).zip(NOTHING, |more, _| i64::try_from(more).unwrap()),
                    time: u128::from(halves(50).forward + saves),
                }
            };
            let choices = [Some(Figures::default()), Some(choice(60, false)), Some(choice(80, true))];
            all.push(Layer { peak: halves(40).zip(grown, |a, b| a + b + 200), choices });
        }
        let between = Halves { forward: 100 * layers + 180, backward: 110 * layers + 190 };
        Profile { layers: all, between, elsewhere: 150 }
    }

    /// The least time by a solver of mixed integer programs: a variable for each layer and choice, a row for each stretch.
    fn least_time(profile: &Profile, budget: u64) -> Option<u128> {
        let mut variables = ProblemVariables::new();
        let of_layer = |_| Choice::ALL.map(|_| variables.add(variable().binary()));
        let chosen: Vec<_> = profile.layers.iter().map(of_layer).collect();
        let sum = |layer: usize, of: &dyn Fn(&Figures) -> f64| -> Expression {
            let choices = profile.layers[layer].choices.iter().zip(&chosen[layer]);
            choices.map(|(figures, chosen)| of(&figures.unwrap()) * *chosen).sum()
        };
        #[allow(clippy::cast_precision_loss)] // small numbers
        let float = |n: u64| n as f64;
        #[allow(clippy::cast_precision_loss)] // small numbers
        let signed = |n: i64| n as f64;
        let layers = profile.layers.len();
        let time: Expression =
            (0..layers).map(|at| sum(at, &|f| float(u64::try_from(f.time).unwrap()))).sum();
        let mut model = variables.minimise(time.clone()).using(microlp);
        for layer in &chosen {
            let one: Expression = layer.iter().copied().sum();
            model = model.with(constraint!(one == 1.0));
        }
        for is_forward in [true, false] {
            let half = |h: Halves| if is_forward { h.forward } else { h.backward };
            let more = |h: Halves<i64>| if is_forward { h.forward } else { h.backward };
            let mut saved = Expression::from(0.0);
            for at in 0..layers {
                let mut total = Expression::from(float(half(profile.layers[at].peak)));
                total -= saved.clone();
                total += sum(at, &|f| signed(more(f.more)));
                if at > 0 {
                    total += sum(at - 1, &|f| float(half(f.in_flight)));
                }
                if at + 1 < layers {
                    total += sum(at + 1, &|f| signed(more(f.before)));
                }
                model = model.with(constraint!(total <= float(budget)));
                saved += sum(at, &|f| float(half(f.saved)));
            }
            let between = Expression::from(float(half(profile.between))) - saved;
            model = model.with(constraint!(between <= float(budget)));
        }
        let solution = model.solve().ok()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a sum of whole numbers
        Some(solution.eval(time).round() as u128)
    }

    #[test]
    fn it_finds_what_a_solver_finds() {
        let mut answered = 0;
        for seed in 1..40 {
            let profile = profile(seed, 3 + seed % 5);
            let time = |choices: &[Choice]| -> u128 {
                choices.iter().zip(&profile.layers).map(|(c, layer)| layer.figures(*c).unwrap().time).sum()
            };
            for budget in [180, 260, 300, 360, 420, 500, 650, 900] {
                let found = profile.cheapest(budget);
                if let Some(choices) = &found {
                    assert!(profile.peak(choices).unwrap() <= budget);
                    answered += 1;
                }
                let found = found.map(|choices| time(&choices));
                assert_eq!(found, least_time(&profile, budget), "seed {seed}, budget {budget}");
            }
        }
        assert!(answered > 80, "{answered} answers");
    }
}

//! In: what was clicked and what was typed; out: which dispatches that means. Knows neither egui nor files.

use super::document::Document;
use kiln::trace::layer_of;

/// What all panels highlight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Nothing.
    #[default]
    None,
    /// One dispatch.
    Dispatch(usize),
    /// All dispatches of a kernel.
    Kernel(String),
    /// All dispatches whose names lie in a layer, or are it.
    Layer(String),
    /// All dispatches that are in a layer once those deeper than so many parts count to them, as in a row of the table:
    /// `blocks.3` of two parts has its norms, and `blocks.3.sa` is another.
    Part(String, usize),
    /// All dispatches of a node of the graph as run.
    Node(usize),
    /// These dispatches, in order, and what they are together: a point of the roofline, a row of a comparison.
    These(Vec<usize>, String),
}

/// Whether a name is a layer or lies in it.
pub fn within(name: &str, layer: &str) -> bool {
    name.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ' ']))
}

impl Selection {
    /// Some dispatches, in any order, and what they are together.
    pub fn of(mut dispatches: Vec<usize>, words: impl FnOnce() -> String) -> Selection {
        dispatches.sort_unstable();
        match dispatches[..] {
            [] => Selection::None,
            [one] => Selection::Dispatch(one),
            _ => Selection::These(dispatches, words()),
        }
    }

    /// Whether it holds a dispatch.
    pub fn holds(&self, document: &Document, dispatch: usize) -> bool {
        let Some(d) = document.trace.dispatches.get(dispatch) else { return false };
        match self {
            Selection::None => false,
            Selection::Dispatch(i) => *i == dispatch,
            Selection::Kernel(kernel) => document.trace.kernel_of(d) == kernel,
            Selection::Layer(layer) => within(&d.name, layer),
            Selection::Part(part, depth) => document.layer(dispatch, *depth) == part,
            Selection::Node(node) => d.node == *node,
            Selection::These(all, _) => all.binary_search(&dispatch).is_ok(),
        }
    }

    /// The dispatches that it holds, in order.
    pub fn dispatches(&self, document: &Document) -> Vec<usize> {
        match self {
            Selection::None => Vec::new(),
            Selection::Dispatch(i) => (*i < document.trace.dispatches.len()).then_some(*i).into_iter().collect(),
            _ => (0..document.trace.dispatches.len()).filter(|i| self.holds(document, *i)).collect(),
        }
    }

    /// The layer that it is the whole of.
    pub fn layer(&self) -> Option<&str> {
        match self {
            Selection::Layer(layer) => Some(layer),
            // a shorter name is that of what lies beside the parts
            Selection::Part(part, depth) => (layer_of(&format!("{part}."), depth - 1) != part).then_some(part),
            _ => None,
        }
    }

    /// Whether it holds what another holds by its very meaning: a layer is chosen by a click on the timeline or the table.
    pub fn is(&self, other: &Selection) -> bool {
        self == other || self.layer().is_some_and(|layer| other.layer() == Some(layer))
    }

    /// In words.
    pub fn words(&self, document: &Document) -> String {
        let trace = &document.trace;
        match self {
            Selection::None => String::new(),
            Selection::Dispatch(i) => trace.dispatches.get(*i).map_or(String::new(), |d| d.name.clone()),
            Selection::Kernel(kernel) => format!("kernel {kernel}"),
            Selection::Layer(layer) | Selection::Part(layer, _) => layer.clone(),
            Selection::Node(node) => trace.graph.after.get(*node).map_or(String::new(), |n| n.name.clone()),
            Selection::These(_, words) => words.clone(),
        }
    }
}

/// Dispatches that have something in common, found in constant time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Marks {
    /// Those dispatches, in order.
    pub dispatches: Vec<usize>,
    /// How many of them come before each dispatch, and in all.
    before: Vec<u32>,
}

impl Marks {
    /// Of so many dispatches those that a test holds for.
    pub fn of(count: usize, test: impl Fn(usize) -> bool) -> Marks {
        let mut marks = Marks { dispatches: Vec::new(), before: Vec::with_capacity(count + 1) };
        for i in 0..count {
            marks.before.push(marks.dispatches.len() as u32);
            if test(i) {
                marks.dispatches.push(i);
            }
        }
        marks.before.push(marks.dispatches.len() as u32);
        marks
    }

    /// Whether a dispatch is one.
    pub fn holds(&self, dispatch: usize) -> bool {
        self.any(dispatch, dispatch)
    }

    /// Whether there is one from a dispatch to another, both counted in.
    pub fn any(&self, first: usize, last: usize) -> bool {
        let before = |i: usize| self.before.get(i).or(self.before.last()).copied().unwrap_or(0);
        before(last.saturating_add(1)) > before(first)
    }
}

/// Whether a dispatch fits the words of a filter: each is part of its name or its kernel's, whatever the case; a word
/// with `!` before it is part of neither.
pub fn fits(document: &Document, dispatch: usize, filter: &str) -> bool {
    let Some(d) = document.trace.dispatches.get(dispatch) else { return false };
    if filter.trim().is_empty() {
        return true;
    }
    let text = format!("{} {}", d.name, document.trace.kernel_of(d)).to_lowercase();
    filter.to_lowercase().split_whitespace().all(|word| match word.strip_prefix('!') {
        Some("") => true,
        Some(without) => !text.contains(without),
        None => text.contains(word),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_layer_holds_what_lies_in_it_and_no_namesake() {
        assert!(within("blocks.1.sa", "blocks.1") && within("blocks.1", "blocks.1") && within("a (copy)", "a"));
        assert!(!within("blocks.10.sa", "blocks.1") && !within("blocks", "blocks.1"));
    }

    #[test]
    fn selections_are_sets_of_dispatches() {
        let document = sample::document();
        assert!(Selection::None.dispatches(&document).is_empty());
        assert_eq!(Selection::Dispatch(1).dispatches(&document), [1]);
        assert!(Selection::Dispatch(99).dispatches(&document).is_empty());
        assert_eq!(Selection::Kernel("matmul".into()).dispatches(&document), [1, 3, 4, 6]);
        assert_eq!(Selection::Layer("blocks.0".into()).dispatches(&document), [1, 2, 3, 4]);
        assert_eq!(Selection::Layer("head".into()).dispatches(&document), [6]);
        assert_eq!(Selection::Node(2).dispatches(&document), [2]);
        let part = |name: &str, depth| Selection::Part(name.into(), depth);
        assert_eq!(part("blocks.0", 1).dispatches(&document), [1, 2, 3, 4]);
        assert_eq!(part("blocks.0.sa", 2).dispatches(&document), [1, 2, 3]);
        assert!(part("blocks.0", 2).dispatches(&document).is_empty());
        assert_eq!(part("blocks.0", 1).layer(), Some("blocks.0"));
        assert_eq!(part("blocks.0.sa", 2).layer(), Some("blocks.0.sa"));
        assert_eq!(part("blocks.0", 2).layer(), None);
        let layer = Selection::Layer("blocks.0".into());
        assert!(layer.is(&part("blocks.0", 1)) && part("blocks.0", 1).is(&layer));
        assert!(!layer.is(&part("blocks.0", 2)) && !part("blocks.0", 2).is(&layer));
        assert!(!Selection::None.is(&layer) && Selection::None.is(&Selection::None));
        assert_eq!(Selection::Kernel("matmul".into()).words(&document), "kernel matmul");
        let these = |all: &[usize]| Selection::of(all.to_vec(), || "two".into());
        assert_eq!(these(&[6, 99, 1]).dispatches(&document), [1, 6]);
        assert_eq!(these(&[6, 1]).words(&document), "two");
        assert_eq!([these(&[3]), these(&[])], [Selection::Dispatch(3), Selection::None]);
    }

    #[test]
    fn marks_are_found_in_any_stretch() {
        let marks = Marks::of(7, |i| i == 2 || i == 5);
        assert_eq!(marks.dispatches, [2, 5]);
        assert_eq!((0..9).filter(|i| marks.holds(*i)).collect::<Vec<_>>(), [2, 5]);
        assert!(marks.any(0, 2) && marks.any(3, 99) && !marks.any(3, 4) && !marks.any(6, usize::MAX));
        assert!(!Marks::default().any(0, 9));
    }

    #[test]
    fn filters_match_names_and_kernels() {
        let document = sample::document();
        let fitting = |filter: &str| (0..7).filter(|i| fits(&document, *i, filter)).collect::<Vec<_>>();
        assert_eq!(fitting(""), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(fitting("BLOCKS.0"), [1, 2, 3, 4]);
        assert_eq!(fitting("blocks.0 matmul"), [1, 3, 4]);
        assert_eq!(fitting("matmul !sa"), [4, 6]);
        assert!(fitting("nothing").is_empty());
        assert_eq!(fitting("! "), [0, 1, 2, 3, 4, 5, 6]);
    }
}

//! In: the nodes of a graph; out: the same as a tree of layers, and what became of what. Knows neither egui nor files.

use kiln::trace::{Graphs, Node, Trace, layer_of};
use std::collections::BTreeMap;

/// What a layer holds, in the order of the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A layer in it.
    Branch(Branch),
    /// A node, by its index.
    Node(usize),
}

/// A layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Branch {
    /// All of its name, `blocks.3.sa`; "" at the root.
    pub path: String,
    /// What it holds.
    pub items: Vec<Item>,
    /// Nodes in it and in the layers that it holds.
    pub nodes: usize,
}

/// Whether a node computes nothing: an input or a parameter.
pub fn is_source(node: &Node) -> bool {
    node.inputs.is_empty() && (node.op == "input" || node.op == "parameter")
}

/// One line of a tree as it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line<'a> {
    /// Layers around it.
    pub depth: usize,
    /// The path of the layer around it.
    pub layer: &'a str,
    /// What it shows.
    pub what: Shown<'a>,
}

/// What a line shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shown<'a> {
    /// A layer, and whether it is open.
    Layer(&'a Branch, bool),
    /// A node, by its index.
    Node(usize),
}

/// Both graphs of a trace by layer, and what became of what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trees {
    /// As written.
    pub before: Branch,
    /// As run.
    pub after: Branch,
    /// By a node as run, the nodes as written that it computes.
    pub taken: BTreeMap<usize, Vec<usize>>,
    /// By a node as run, the kernel of its first dispatch: index in the trace's list.
    pub kernels: Vec<Option<usize>>,
}

impl Trees {
    /// Of the nodes whose names or ops hold a word, in small letters; inputs and parameters only where they are wanted.
    pub fn of(trace: &Trace, word: &str, sources: bool) -> Trees {
        let holds = |text: &str| word.is_empty() || text.to_lowercase().contains(word);
        let wanted = |_: usize, node: &Node| (sources || !is_source(node)) && (holds(&node.name) || holds(&node.op));
        let graph = &trace.graph;
        let mut kernels = vec![None; graph.after.len()];
        for d in trace.dispatches.iter().rev() {
            kernels[d.node] = Some(d.kernel);
        }
        Trees { before: tree(&graph.before, wanted), after: tree(&graph.after, wanted), taken: took_in(graph), kernels }
    }
}

/// The nodes that are wanted, by layer, in the order of the graph: a layer that comes back is another.
pub fn tree(nodes: &[Node], wanted: impl Fn(usize, &Node) -> bool) -> Branch {
    // every layer and what it holds, the root first
    let mut layers: Vec<(&str, Vec<Found>)> = vec![("", Vec::new())];
    for (i, node) in nodes.iter().enumerate().filter(|(i, n)| wanted(*i, n)) {
        let mut inside = 0;
        for depth in 1.. {
            let path = layer_of(&node.name, depth);
            if path.len() <= layers[inside].0.len() {
                break;
            }
            inside = match layers[inside].1.last() {
                Some(Found::Layer(last)) if layers[*last].0 == path => *last,
                _ => {
                    layers.push((path, Vec::new()));
                    let new = layers.len() - 1;
                    layers[inside].1.push(Found::Layer(new));
                    new
                }
            };
        }
        layers[inside].1.push(Found::Node(i));
    }
    branch(&layers, 0)
}

/// A node, or the index of a layer.
enum Found {
    Node(usize),
    Layer(usize),
}

/// A layer with those in it, which are as deep as `layer_of` finds them.
fn branch(layers: &[(&str, Vec<Found>)], at: usize) -> Branch {
    let (path, found) = &layers[at];
    let items: Vec<Item> = found
        .iter()
        .map(|f| match f {
            Found::Node(i) => Item::Node(*i),
            Found::Layer(l) => Item::Branch(branch(layers, *l)),
        })
        .collect();
    let nodes = items.iter().map(|item| if let Item::Branch(b) = item { b.nodes } else { 1 }).sum();
    Branch { path: (*path).to_owned(), items, nodes }
}

impl Branch {
    /// The last part of its path, with its number: `blocks.3`, `sa`.
    pub fn title(&self, parent: &str) -> &str {
        inside(&self.path, parent)
    }

    /// What of it is shown, from top to bottom; `open` says of a layer at a depth whether what it holds is.
    pub fn lines(&self, open: &dyn Fn(&Branch, usize) -> bool) -> Vec<Line<'_>> {
        let mut lines = Vec::new();
        self.add_lines(0, open, &mut lines);
        lines
    }

    fn add_lines<'a>(&'a self, depth: usize, open: &dyn Fn(&Branch, usize) -> bool, lines: &mut Vec<Line<'a>>) {
        for item in &self.items {
            let line = |what| Line { depth, layer: &self.path, what };
            match item {
                Item::Node(i) => lines.push(line(Shown::Node(*i))),
                // one node needs no layer around it
                Item::Branch(inner) if inner.nodes == 1 => {
                    lines.extend(inner.only().map(|i| line(Shown::Node(i))));
                }
                Item::Branch(inner) => {
                    let open_now = open(inner, depth);
                    lines.push(line(Shown::Layer(inner, open_now)));
                    if open_now {
                        inner.add_lines(depth + 1, open, lines);
                    }
                }
            }
        }
    }

    /// A node in it or in the layers that it holds; the only one where `nodes` is 1.
    pub fn only(&self) -> Option<usize> {
        self.items.iter().find_map(|item| match item {
            Item::Node(i) => Some(*i),
            Item::Branch(inner) => inner.only(),
        })
    }
}

/// What of a name is not said by the layer that it lies in.
pub fn inside<'a>(name: &'a str, layer: &str) -> &'a str {
    name.strip_prefix(layer).unwrap_or(name).trim_start_matches('.')
}

/// By a node as run, the nodes as written that it computes, inputs and parameters left out.
pub fn took_in(graphs: &Graphs) -> BTreeMap<usize, Vec<usize>> {
    let mut all: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, node) in graphs.before.iter().enumerate().filter(|(_, n)| !is_source(n)) {
        if let Some(to) = node.becomes {
            all.entry(to).or_default().push(i);
        }
    }
    all
}

/// The name of the node that a finding speaks of: `blocks.0.sa: 12 heads → one` speaks of `blocks.0.sa`.
pub fn subject(finding: &str) -> &str {
    finding.split(": ").next().unwrap_or(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn nodes_lie_in_their_layers_in_order() {
        let trace = sample::trace();
        let root = tree(&trace.graph.before, |_, n| !is_source(n));
        assert_eq!(root.nodes, 12);
        let titles: Vec<String> = root
            .items
            .iter()
            .map(|item| match item {
                Item::Branch(b) => format!("{} ({})", b.title(""), b.nodes),
                Item::Node(i) => trace.graph.before[*i].name.clone(),
            })
            .collect();
        assert_eq!(titles, ["emb", "blocks.0 (9)", "ln", "head"]);
        let Item::Branch(block) = &root.items[1] else { panic!("a layer") };
        let Item::Branch(sa) = &block.items[0] else { panic!("a layer in it") };
        assert_eq!((inside("blocks.0.sa.proj", &sa.path), inside("head", "")), ("proj", "head"));
        let shown = |open: &dyn Fn(&Branch, usize) -> bool| -> Vec<(usize, String)> {
            let word = |what| match what {
                Shown::Layer(b, open) => format!("{} {open}", b.path),
                Shown::Node(i) => trace.graph.before[i].name.clone(),
            };
            root.lines(open).into_iter().map(|l| (l.depth, word(l.what))).collect()
        };
        let closed = shown(&|_, _| false);
        let names = [(0, "emb"), (0, "blocks.0 false"), (0, "ln"), (0, "head")];
        assert_eq!(closed, names.map(|(d, n)| (d, n.to_owned())));
        let open = shown(&|_, depth| depth == 0);
        assert_eq!(open.len(), 4 + 2, "the block's two layers, closed");
        assert_eq!(open[2], (1, "blocks.0.sa false".to_owned()));
        assert_eq!(shown(&|_, _| true).len(), 12 + 3, "all nodes and layers of more than one");
        assert_eq!((block.only(), sa.only()), (Some(1), Some(1)));
        assert_eq!((sa.path.as_str(), sa.title(&block.path), sa.nodes), ("blocks.0.sa", "sa", 7));
    }

    #[test]
    fn nodes_stay_in_order_where_a_layer_comes_back() {
        let names = ["ffwd.net.0", "ffwd.net.1.relu", "ffwd.net.2", "head"];
        let node = |name: &&str| Node { name: (*name).into(), ..sample::trace().graph.before[1].clone() };
        let nodes: Vec<Node> = names.iter().map(node).collect();
        let root = tree(&nodes, |_, _| true);
        let lines = root.lines(&|_, _| true);
        let shown = lines.iter().filter_map(|l| if let Shown::Node(i) = l.what { Some((i, l.layer)) } else { None });
        assert_eq!(shown.collect::<Vec<_>>(), [(0, "ffwd"), (1, "ffwd"), (2, "ffwd"), (3, "")]);
    }

    #[test]
    fn what_a_node_took_in() {
        let trace = sample::trace();
        let all = took_in(&trace.graph);
        let names = |i: usize| all[&i].iter().map(|n| trace.graph.before[*n].name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(2), ["blocks.0.sa.scores", "blocks.0.sa.softmax", "blocks.0.sa.mix"]);
        assert_eq!(names(4), ["blocks.0.ffwd.0", "blocks.0.ffwd.1"]);
        assert_eq!(subject("blocks.0.sa: 2 heads → one"), "blocks.0.sa");
    }
}

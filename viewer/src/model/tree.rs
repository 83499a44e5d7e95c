//! In: the nodes of a graph; out: the same as a tree of layers, and what became of what. Knows neither egui nor files.

use kiln::trace::{Graphs, Node, layer_of};
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

/// The nodes that are wanted, by layer.
pub fn tree(nodes: &[Node], wanted: impl Fn(usize, &Node) -> bool) -> Branch {
    let mut root = Branch::default();
    for (i, node) in nodes.iter().enumerate().filter(|(i, n)| wanted(*i, n)) {
        root.add(i, &node.name, 1);
    }
    root
}

impl Branch {
    fn add(&mut self, node: usize, name: &str, depth: usize) {
        self.nodes += 1;
        let path = layer_of(name, depth);
        if path.len() <= self.path.len() {
            self.items.push(Item::Node(node));
            return;
        }
        for item in &mut self.items {
            if let Item::Branch(branch) = item
                && branch.path == path
            {
                return branch.add(node, name, depth + 1);
            }
        }
        let mut branch = Branch { path: path.to_owned(), ..Branch::default() };
        branch.add(node, name, depth + 1);
        self.items.push(Item::Branch(branch));
    }

    /// The last part of its path, with its number: `blocks.3`, `sa`.
    pub fn title(&self, parent: &str) -> &str {
        inside(&self.path, parent)
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
        assert_eq!((block.only(), sa.only()), (Some(1), Some(1)));
        assert_eq!((sa.path.as_str(), sa.title(&block.path), sa.nodes), ("blocks.0.sa", "sa", 7));
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

//! In: the graphs, findings and kernels of the open trace; out: both graphs by layer, what took in what, and the source
//! of what is selected.

use super::{hint, swatch};
use crate::colour;
use crate::model::document::Document;
use crate::model::selection::{Selection, within};
use crate::model::tree::{Branch, Item, inside, is_source, subject, took_in, tree};
use crate::model::units::drawable;
use crate::state::State;
use eframe::egui::{self, Label, RichText, ScrollArea, Sense, Ui};
use kiln::trace::Node;
use std::collections::BTreeMap;

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    let Some(open) = state.open.get(state.current) else { return };
    let document = open.document.clone();
    let trace = &document.trace;
    ui.horizontal(|ui| {
        let label = ui.label("Find");
        let field =
            egui::TextEdit::singleline(&mut state.graph_filter).hint_text("a node or an op").desired_width(160.0);
        ui.add(field).labelled_by(label.id);
        ui.checkbox(&mut state.settings.sources, "inputs and parameters");
    });
    if trace.graph.after.is_empty() {
        return hint(ui, "No graph", "This trace was recorded without one.");
    }
    let taken = took_in(&trace.graph);
    let words = state.graph_filter.to_lowercase();
    let sources = state.settings.sources;
    let wanted = |node: &Node| {
        (sources || !is_source(node))
            && (words.is_empty() || node.name.to_lowercase().contains(&words) || node.op.contains(&words))
    };
    let view = Trees {
        document: &document,
        taken: &taken,
        selection: &state.selection,
        before: tree(&trace.graph.before, |_, n| wanted(n)),
        after: tree(&trace.graph.after, |_, n| wanted(n)),
        unfold: !words.is_empty(),
    };
    let mut clicked = None;
    let width = ui.available_width();
    let frame = egui::Frame::new().inner_margin(egui::Margin::symmetric(6, 2));
    egui::Panel::right("graph_source").frame(frame).default_size(width * 0.38).size_range(160.0..=width * 0.6).show(
        ui,
        |ui| {
            view.source(ui);
        },
    );
    egui::Panel::left("graph_before").frame(frame).default_size(width * 0.31).size_range(120.0..=width * 0.5).show(
        ui,
        |ui| {
            let text = format!("As written: {} nodes", view.before.nodes);
            ui.label(RichText::new(text).strong());
            view.column(ui, Side::Before, &mut clicked);
        },
    );
    egui::CentralPanel::default().frame(frame).show(ui, |ui| {
        let text = format!("As run: {} nodes", view.after.nodes);
        ui.label(RichText::new(text).strong());
        view.column(ui, Side::After, &mut clicked);
    });
    if let Some(node) = clicked {
        let chosen = Selection::Node(node);
        state.selection = if state.selection == chosen { Selection::None } else { chosen };
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Before,
    After,
}

struct Trees<'a> {
    document: &'a Document,
    taken: &'a BTreeMap<usize, Vec<usize>>,
    selection: &'a Selection,
    before: Branch,
    after: Branch,
    unfold: bool,
}

impl Trees<'_> {
    fn column(&self, ui: &mut Ui, side: Side, clicked: &mut Option<usize>) {
        let salt = if side == Side::Before { "before" } else { "after" };
        let root = if side == Side::Before { &self.before } else { &self.after };
        ScrollArea::both().id_salt(salt).auto_shrink([false, false]).show(ui, |ui| {
            if root.nodes == 0 {
                ui.weak("no node is called so");
            }
            self.items(ui, side, root, clicked);
        });
    }

    fn items(&self, ui: &mut Ui, side: Side, branch: &Branch, clicked: &mut Option<usize>) {
        for item in &branch.items {
            match item {
                Item::Node(i) => self.node(ui, side, *i, &branch.path, clicked),
                // one node needs no layer around it
                Item::Branch(inner) if inner.nodes == 1 => {
                    if let Some(i) = inner.only() {
                        self.node(ui, side, i, &branch.path, clicked);
                    }
                }
                Item::Branch(inner) => {
                    let title = format!("{}  ({})", inner.title(&branch.path), inner.nodes);
                    let holds = side == Side::After && self.selected_in(inner);
                    let title = if holds { RichText::new(title).strong() } else { RichText::new(title) };
                    let first = branch.path.is_empty() && inner.path.ends_with(".0");
                    egui::CollapsingHeader::new(title)
                        .id_salt((side == Side::Before, &inner.path))
                        .default_open(first || inner.nodes <= 6)
                        .open(self.unfold.then_some(true))
                        .show(ui, |ui| self.items(ui, side, inner, clicked));
                }
            }
        }
    }

    fn selected_in(&self, branch: &Branch) -> bool {
        self.chosen().is_some_and(|n| within(&self.document.trace.graph.after[n].name, &branch.path))
    }

    /// The node as run that is selected, itself or by its dispatch.
    fn chosen(&self) -> Option<usize> {
        match self.selection {
            Selection::Node(n) => Some(*n).filter(|n| *n < self.document.trace.graph.after.len()),
            Selection::Dispatch(i) => self.document.trace.dispatches.get(*i).map(|d| d.node),
            _ => None,
        }
    }

    fn node(&self, ui: &mut Ui, side: Side, i: usize, layer: &str, clicked: &mut Option<usize>) {
        let graph = &self.document.trace.graph;
        let node = if side == Side::Before { &graph.before[i] } else { &graph.after[i] };
        let stands = if side == Side::Before { node.becomes } else { Some(i) };
        let chosen = stands.is_some() && stands == self.chosen();
        let response = ui
            .horizontal(|ui| {
                if let Some(kernel) = stands.and_then(|n| self.kernel(n)) {
                    swatch(ui, colour::kernel(kernel));
                }
                let text = RichText::new(inside(&node.name, layer));
                let text = if chosen { text.strong().underline() } else { text };
                let name = ui.add(Label::new(text).sense(Sense::click()).selectable(false).extend());
                ui.add(Label::new(RichText::new(drawable(&node.op)).weak()).selectable(false).extend());
                self.note(ui, side, i, node);
                name
            })
            .inner;
        if response.clicked() {
            *clicked = stands;
        }
        response.on_hover_ui(|ui| {
            ui.strong(&node.name);
            ui.label(drawable(&node.op));
            ui.weak(&node.ty);
        });
    }

    /// Beside a node: what became of it, or how much it took in.
    fn note(&self, ui: &mut Ui, side: Side, i: usize, node: &Node) {
        let graph = &self.document.trace.graph;
        let text = match side {
            Side::Before => match node.becomes {
                None => "→ not needed".into(),
                Some(to) if graph.after[to].name == node.name => return,
                Some(to) => format!("→ {}", graph.after[to].name),
            },
            Side::After => match self.taken.get(&i).map_or(0, Vec::len) {
                0 | 1 => return,
                n => format!("⇐ {n} ops"),
            },
        };
        let colour = colour::better(ui.visuals());
        ui.add(Label::new(RichText::new(text).color(colour)).selectable(false).extend());
    }

    fn kernel(&self, node: usize) -> Option<&str> {
        let trace = &self.document.trace;
        trace.dispatches.iter().find(|d| d.node == node).map(|d| trace.kernel_of(d))
    }

    /// What was fused, and the WGSL of the selected node's kernels.
    fn source(&self, ui: &mut Ui) {
        let trace = &self.document.trace;
        let dispatches = self.selection.dispatches(self.document);
        ScrollArea::both().id_salt("source").auto_shrink([false, false]).show(ui, |ui| {
            let Some(&first) = dispatches.first() else {
                ui.strong("What was fused");
                if trace.graph.findings.is_empty() {
                    ui.weak("nothing: the graph runs as written");
                }
                for finding in &trace.graph.findings {
                    ui.horizontal(|ui| {
                        ui.label(RichText::new(&finding.pass).color(colour::better(ui.visuals())));
                        ui.add(Label::new(&finding.what).extend());
                    });
                }
                ui.add_space(6.0);
                ui.weak("Select a node to see the source of its kernel.");
                return;
            };
            let d = &trace.dispatches[first];
            ui.strong(self.selection.words(self.document));
            if let Some(node) = trace.graph.after.get(d.node) {
                ui.label(drawable(&node.op));
                ui.weak(&node.ty);
            }
            let ops: Vec<&str> = self
                .taken
                .get(&d.node)
                .map_or(Vec::new(), |all| all.iter().map(|i| trace.graph.before[*i].name.as_str()).collect());
            if ops.len() > 1 {
                ui.add_space(4.0);
                ui.label(
                    RichText::new(format!("computes {} ops as written", ops.len())).color(colour::better(ui.visuals())),
                );
                const SHOWN: usize = 12;
                for op in ops.iter().take(SHOWN) {
                    ui.weak(format!("  {op}"));
                }
                if ops.len() > SHOWN {
                    ui.weak(format!("  and {} more", ops.len() - SHOWN));
                }
            }
            let name = trace.graph.after.get(d.node).map_or("", |n| n.name.as_str());
            for finding in trace.graph.findings.iter().filter(|f| subject(&f.what) == name) {
                ui.label(RichText::new(format!("{}: {}", finding.pass, finding.what)).italics());
            }
            ui.add_space(6.0);
            let Some(kernel) = trace.kernels.get(d.kernel) else { return };
            ui.horizontal(|ui| {
                swatch(ui, colour::kernel(&kernel.name));
                ui.strong(format!("{}.wgsl", kernel.name));
                if ui.small_button("Copy").clicked() {
                    ui.ctx().copy_text(kernel.wgsl.clone());
                }
            });
            ui.add(Label::new(RichText::new(drawable(&kernel.key)).weak().small()).extend());
            ui.add_space(4.0);
            let theme = egui_extras::syntax_highlighting::CodeTheme::from_memory(ui.ctx(), ui.style());
            // of the languages at hand Rust is WGSL's next of kin
            let job = egui_extras::syntax_highlighting::highlight(
                ui.ctx(),
                ui.style(),
                &theme,
                &drawable(&kernel.wgsl),
                "rs",
            );
            ui.add(Label::new(job).selectable(true).extend());
        });
    }
}

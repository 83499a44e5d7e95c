//! In: the graphs, findings and kernels of the open trace; out: both graphs by layer, what took in what, and the source
//! of what is selected.

use super::{hint, swatch};
use crate::colour;
use crate::model::document::Document;
use crate::model::selection::{Marks, Selection, within};
use crate::model::tree::{Branch, Shown, Trees, inside, subject};
use crate::model::units::drawable;
use crate::state::State;
use eframe::egui::{self, Label, RichText, ScrollArea, Sense, Ui};
use kiln::trace::Node;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    let words = state.graph_filter.to_lowercase();
    let key = (open.revision, words.clone(), state.settings.sources);
    let trees = state.trees.get(key, || Arc::new(Trees::of(trace, &words, state.settings.sources))).clone();
    let chosen = state.chosen().0;
    let view = View { document: &document, trees: &trees, selection: &state.selection, chosen: &chosen };
    let unfold = !words.is_empty();
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
            let text = format!("As written: {} nodes", trees.before.nodes);
            ui.label(RichText::new(text).strong());
            view.column(ui, Side::Before, unfold, &mut state.graph_folds[0], &mut clicked);
        },
    );
    egui::CentralPanel::default().frame(frame).show(ui, |ui| {
        let text = format!("As run: {} nodes", trees.after.nodes);
        ui.label(RichText::new(text).strong());
        view.column(ui, Side::After, unfold, &mut state.graph_folds[1], &mut clicked);
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

struct View<'a> {
    document: &'a Document,
    trees: &'a Trees,
    selection: &'a Selection,
    chosen: &'a Marks,
}

/// Layers that were opened or closed, by their paths.
type Folds = BTreeMap<String, bool>;

impl View<'_> {
    /// Draws those lines of a tree that are in view.
    fn column(&self, ui: &mut Ui, side: Side, unfold: bool, folds: &mut Folds, clicked: &mut Option<usize>) {
        let (salt, root) = match side {
            Side::Before => ("before", &self.trees.before),
            Side::After => ("after", &self.trees.after),
        };
        if root.nodes == 0 {
            ui.weak("no node is called so");
        }
        let lines = root.lines(&|branch, depth| {
            let first = depth == 0 && branch.path.ends_with(".0");
            let asked = folds.get(&branch.path).copied();
            unfold || asked.unwrap_or(first || branch.nodes <= 6)
        });
        let mut turned = None;
        let height = ui.spacing().interact_size.y;
        ScrollArea::both().id_salt(salt).auto_shrink([false, false]).show_rows(ui, height, lines.len(), |ui, seen| {
            for line in &lines[seen] {
                ui.horizontal(|ui| {
                    ui.set_min_height(height);
                    ui.add_space(line.depth as f32 * ui.spacing().indent);
                    match line.what {
                        Shown::Layer(branch, open) => {
                            if self.layer(ui, side, branch, line.layer, open) {
                                turned = Some((branch.path.clone(), !open));
                            }
                        }
                        Shown::Node(i) => self.node(ui, side, i, line.layer, clicked),
                    }
                });
            }
        });
        if let Some((path, open)) = turned {
            folds.insert(path, open);
        }
    }

    /// A layer, and whether it was clicked.
    fn layer(&self, ui: &mut Ui, side: Side, branch: &Branch, around: &str, open: bool) -> bool {
        let (_, icon) = ui.allocate_exact_size(egui::Vec2::splat(ui.spacing().icon_width), Sense::click());
        egui::collapsing_header::paint_default_icon(ui, if open { 1.0 } else { 0.0 }, &icon);
        let title = RichText::new(format!("{}  ({})", branch.title(around), branch.nodes));
        let holds = side == Side::After && self.selected_in(branch);
        let title = if holds { title.strong() } else { title };
        let title = ui.add(Label::new(title).sense(Sense::click()).selectable(false).extend());
        icon.clicked() || title.clicked()
    }

    fn selected_in(&self, branch: &Branch) -> bool {
        self.chosen().is_some_and(|n| within(&self.document.trace.graph.after[n].name, &branch.path))
    }

    /// The node as run that is selected, itself or by its dispatch.
    fn chosen(&self) -> Option<usize> {
        match self.selection {
            Selection::Node(n) => Some(*n).filter(|n| *n < self.document.trace.graph.after.len()),
            Selection::Dispatch(i) => self.document.trace.dispatches.get(*i).map(|d| d.node),
            Selection::These(all, _) => {
                let mut nodes = all.iter().filter_map(|i| self.document.trace.dispatches.get(*i)).map(|d| d.node);
                let first = nodes.next()?;
                nodes.all(|n| n == first).then_some(first)
            }
            _ => None,
        }
    }

    fn node(&self, ui: &mut Ui, side: Side, i: usize, layer: &str, clicked: &mut Option<usize>) {
        let graph = &self.document.trace.graph;
        let node = if side == Side::Before { &graph.before[i] } else { &graph.after[i] };
        let stands = if side == Side::Before { node.becomes } else { Some(i) };
        let chosen = stands.is_some() && stands == self.chosen();
        if let Some(kernel) = stands.and_then(|n| self.kernel(n)) {
            swatch(ui, colour::kernel(kernel));
        }
        let text = RichText::new(inside(&node.name, layer));
        let text = if chosen { text.strong().underline() } else { text };
        let response = ui.add(Label::new(text).sense(Sense::click()).selectable(false).extend());
        ui.add(Label::new(RichText::new(drawable(&node.op)).weak()).selectable(false).extend());
        self.note(ui, side, i, node);
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
            Side::After => match self.trees.taken.get(&i).map_or(0, Vec::len) {
                0 | 1 => return,
                n => format!("⇐ {n} ops"),
            },
        };
        let colour = colour::better(ui.visuals());
        ui.add(Label::new(RichText::new(text).color(colour)).selectable(false).extend());
    }

    fn kernel(&self, node: usize) -> Option<&str> {
        let kernel = self.trees.kernels.get(node).copied().flatten()?;
        self.document.trace.kernels.get(kernel).map(|k| k.name.as_str())
    }

    /// What was fused, and the WGSL of the selected node's kernels.
    fn source(&self, ui: &mut Ui) {
        let trace = &self.document.trace;
        ScrollArea::both().id_salt("source").auto_shrink([false, false]).show(ui, |ui| {
            let Some(&first) = self.chosen.dispatches.first() else {
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
                .trees
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

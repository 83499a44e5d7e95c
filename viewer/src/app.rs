//! In: files, clicks and keys; out: the window: bars, panels side by side, errors in place. Knows files by their seam
//! alone.

use crate::files::{Files, LARGEST, Later};
use crate::live::panel::{Live, update};
use crate::model::document::Document;
use crate::model::selection::Selection;
use crate::model::units::{count, maybe_time, part, percent};
use crate::panels::Panel;
use crate::state::{Request, Settings, State};
use crate::{colour, sample};
use eframe::egui::{self, Context, Key, Rect, RichText, Ui};
use egui_tiles::{Behavior, Container, SimplificationOptions, Tile, TileId, Tiles, Tree, UiResponse};
use kiln::trace::Trace;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Where settings and the arrangement of panels are kept.
const KEY: &str = "kiln-viewer";

/// Key and what it does.
pub const SHORTCUTS: [(&str, &str); 14] = [
    ("wheel, W, S", "zoom the timeline around the pointer"),
    ("drag, sideways wheel, A, D", "move along the timeline"),
    ("double click", "zoom to a span"),
    ("click", "select, in all panels"),
    ("F", "show the whole frame"),
    ("[ and ]", "the frame before and after"),
    ("0", "show all, the compilation too"),
    ("Ctrl F", "filter by names and kernels; ! leaves a word out"),
    ("Esc", "clear the filter, then the selection"),
    ("Ctrl O", "open a file by its path"),
    ("Ctrl W", "close the trace"),
    ("Ctrl E", "save the timeline as a picture; each panel has ⬇ for its own"),
    ("Ctrl D", "dark or light"),
    ("?", "this list"),
];

/// The viewer.
pub struct Viewer {
    /// What panels share.
    pub state: State,
    /// Which panel is where.
    pub tree: Tree<Panel>,
    files: Box<dyn Files>,
    /// What went wrong last, or was done.
    pub message: Option<(bool, String)>,
    /// Whether the list of shortcuts is shown.
    pub help: bool,
    /// What stands in the window that asks for a file, while it is shown.
    path: Option<String>,
    /// What was chosen there and has not come.
    asked: Option<String>,
    /// Whether a field, a menu or a window had what is typed when the last frame ended: Escape leaves that alone.
    typing: bool,
    pictures: (Sender<Picture>, Receiver<Picture>),
    arrived: (Sender<Arrived>, Receiver<Arrived>),
    wanted: Option<Panel>,
}

/// Of the window, for the sake of a panel.
type Picture = (Panel, std::sync::Arc<egui::ColorImage>);

/// A file's name and what reading it gave.
type Arrived = (String, Result<Vec<u8>, String>);

/// Timeline above, the rest below.
pub fn arrangement() -> Tree<Panel> {
    let mut tiles = Tiles::default();
    let timeline = tiles.insert_pane(Panel::Timeline);
    let table = tiles.insert_pane(Panel::Table);
    let rest = [Panel::Roofline, Panel::Memory, Panel::Graph, Panel::Compare, Panel::Live];
    let rest: Vec<TileId> = rest.into_iter().map(|p| tiles.insert_pane(p)).collect();
    let tables = tiles.insert_tab_tile(vec![table]);
    let tabs = tiles.insert_tab_tile(rest);
    let below = tiles.insert_horizontal_tile(vec![tables, tabs]);
    let above = tiles.insert_tab_tile(vec![timeline]);
    let root = tiles.insert_vertical_tile(vec![above, below]);
    if let Some(Tile::Container(Container::Linear(linear))) = tiles.get_mut(root) {
        linear.shares.set_share(above, 0.8);
        linear.shares.set_share(below, 1.2);
    }
    Tree::new(egui::Id::unique("panels"), root, tiles)
}

/// Fonts, sizes and distances. To be called once, before the first frame.
pub fn style(ctx: &Context) {
    let mut fonts = egui::FontDefinitions::default();
    // the proportional font has neither arrows nor triangles
    fonts.families.entry(egui::FontFamily::Proportional).or_default().push("Hack".into());
    ctx.set_fonts(fonts);
    ctx.all_styles_mut(|style| {
        style.spacing.item_spacing = egui::vec2(6.0, 4.0);
        style.spacing.button_padding = egui::vec2(6.0, 2.0);
        style.interaction.tooltip_delay = 0.15;
        style.interaction.selectable_labels = false;
        // figures are read, so they stand out more than egui's labels
        let dark = style.visuals.dark_mode;
        style.visuals.widgets.noninteractive.fg_stroke.color = egui::Color32::from_gray(if dark { 205 } else { 40 });
        style.visuals.weak_text_alpha = 0.7;
    });
}

impl Viewer {
    /// With what was kept from the last start.
    pub fn new(storage: Option<&dyn eframe::Storage>, files: Box<dyn Files>, live: Live) -> Viewer {
        let kept: Option<(Settings, Tree<Panel>)> = storage.and_then(|s| eframe::get_value(s, KEY));
        let (settings, tree) = kept.unwrap_or_else(|| (Settings::default(), arrangement()));
        // one that an older viewer kept may lack a panel
        let whole = Panel::ALL.iter().all(|p| tree.tiles.find_pane(p).is_some());
        let tree = if whole { tree } else { arrangement() };
        Viewer {
            state: State::new(settings, live),
            tree,
            files,
            message: None,
            help: false,
            path: None,
            asked: None,
            typing: false,
            pictures: channel(),
            arrived: channel(),
            wanted: None,
        }
    }

    /// Opens files, now or when they have come; what is wrong with any of them is shown.
    pub fn open(&mut self, paths: &[impl AsRef<str>], ctx: &Context) {
        for path in paths {
            self.await_bytes(path.as_ref(), self.files.read(path.as_ref()), ctx);
        }
        self.take_bytes();
    }

    fn await_bytes(&mut self, name: &str, read: Later<Result<Vec<u8>, String>>, ctx: &Context) {
        let (name, sender, again) = (name.to_owned(), self.arrived.0.clone(), ctx.clone());
        self.files.carry_out(Box::pin(async move {
            // the window may have gone meanwhile
            let _gone = sender.send((name, read.await));
            again.request_repaint();
        }));
    }

    /// Opens what has come. One that is good hides nothing of what is wrong with others.
    fn take_bytes(&mut self) {
        let mut wrong = Vec::new();
        while let Ok((name, read)) = self.arrived.1.try_recv() {
            match read {
                Ok(bytes) => self.open_bytes(&name, &bytes),
                Err(error) => self.message = Some((true, error)),
            }
            let error = self.message.take_if(|(bad, _)| *bad).map(|(_, error)| error);
            if self.asked.take_if(|asked| *asked == name).is_some() && error.is_some() {
                // to be mended
                self.path.get_or_insert(name);
            }
            wrong.extend(error);
        }
        if !wrong.is_empty() {
            self.message = Some((true, wrong.join("; ")));
        }
    }

    /// Opens what was read or dropped.
    pub fn open_bytes(&mut self, path: &str, bytes: &[u8]) {
        if bytes.len() > LARGEST {
            self.message = Some((true, format!("{path}: more than {LARGEST} bytes, which no trace has")));
            return;
        }
        match Trace::from_json(bytes) {
            Ok(trace) => {
                let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
                self.state.add(Document::new(name, trace));
                self.state.settings.remember(&self.files.place(path));
                self.message = None;
            }
            Err(error) => self.message = Some((true, format!("{path}: {error}"))),
        }
    }

    fn obey(&mut self, ctx: &Context) {
        for request in std::mem::take(&mut self.state.requests) {
            match request {
                Request::Example => {
                    self.state.add(Document::new("example, eager", sample::eager()));
                    self.state.add(Document::new("example", sample::trace()));
                }
                Request::Open(path) => self.open(&[path], ctx),
                Request::Save { stem, extension, bytes } => {
                    self.message = Some(match self.files.write(&stem, extension, &bytes) {
                        Ok(place) => (false, format!("written to {place}")),
                        Err(error) => (true, error),
                    });
                }
            }
        }
    }

    fn dropped(&mut self, ctx: &Context) {
        for file in ctx.input(|i| i.raw.dropped_files.clone()) {
            let name = file.path().display().to_string();
            self.await_bytes(&name, self.files.dropped(file), ctx);
        }
        self.take_bytes();
    }

    fn keys(&mut self, ctx: &Context) {
        let command = |key| ctx.input_mut(|i| i.consume_key(egui::Modifiers::COMMAND, key));
        if command(Key::O) {
            self.path.get_or_insert_default();
        }
        if command(Key::W) {
            self.state.close(self.state.current);
        }
        if command(Key::E) {
            self.wanted = Some(Panel::Timeline);
        }
        if command(Key::F) {
            ctx.memory_mut(|m| m.request_focus(egui::Id::unique("filter")));
        }
        if command(Key::D) {
            let dark = ctx.global_style().visuals.dark_mode;
            ctx.set_theme(if dark { egui::Theme::Light } else { egui::Theme::Dark });
        }
        if ctx.memory(|m| m.focused().is_some()) {
            return;
        }
        let typed = |text: &str| ctx.input(|i| i.events.iter().any(|e| matches!(e, egui::Event::Text(t) if t == text)));
        if typed("?") {
            self.help = !self.help;
        }
        if ctx.input(|i| i.key_pressed(Key::Escape)) && !self.typing {
            if self.help {
                self.help = false;
            } else if !self.state.filter.is_empty() {
                self.state.filter.clear();
            } else {
                self.state.selection = Selection::None;
            }
        }
    }

    fn top_bar(&mut self, ui: &mut Ui) {
        ui.horizontal(|ui| {
            ui.label(RichText::new("kiln").strong().size(15.0));
            ui.menu_button("File", |ui| self.file_menu(ui));
            self.document_picker(ui);
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                if ui.button("?").on_hover_text("keyboard and mouse").clicked() {
                    self.help = !self.help;
                }
                let dark = ui.visuals().dark_mode;
                if ui.button(if dark { "Light" } else { "Dark" }).on_hover_text("dark or light (Ctrl D)").clicked() {
                    ui.ctx().set_theme(if dark { egui::Theme::Light } else { egui::Theme::Dark });
                }
                let filter = egui::TextEdit::singleline(&mut self.state.filter)
                    .id(egui::Id::unique("filter"))
                    .hint_text("matmul !blocks.0")
                    .desired_width(190.0);
                let field = ui.add(filter);
                let field = field.labelled_by(ui.label("Filter").id);
                if (field.has_focus() || field.lost_focus()) && ui.input(|i| i.key_pressed(Key::Escape)) {
                    self.state.filter.clear();
                }
                if self.state.live.running.is_some() {
                    ui.label(RichText::new("● live").color(colour::better(ui.visuals())));
                }
            });
        });
    }

    fn file_menu(&mut self, ui: &mut Ui) {
        if ui.button("Open a file…   Ctrl O").clicked() {
            self.path.get_or_insert_default();
        }
        let recent = self.state.settings.recent.clone();
        ui.menu_button("Open again", |ui| {
            for path in &recent {
                if ui.button(path).clicked() {
                    self.state.requests.push(Request::Open(path.clone()));
                }
            }
            if recent.is_empty() {
                ui.weak("nothing was opened yet");
            }
        });
        if ui.button("Open the example").clicked() {
            self.state.requests.push(Request::Example);
        }
        ui.separator();
        let current = self.state.current().map(|o| o.document.clone());
        type Export = (&'static str, &'static str, &'static str, fn(&Trace) -> String);
        let exports: [Export; 3] = [
            ("Save the trace", "kiln-trace", "json", Trace::to_json),
            ("Save for Perfetto", "kiln-perfetto", "json", Trace::to_chrome),
            ("Save as CSV", "kiln-dispatches", "csv", Trace::to_csv),
        ];
        for (title, stem, extension, text) in exports {
            if ui.add_enabled(current.is_some(), egui::Button::new(title)).clicked()
                && let Some(document) = &current
            {
                let bytes = text(&document.trace).into_bytes();
                self.state.requests.push(Request::Save { stem: stem.into(), extension, bytes });
            }
        }
        ui.separator();
        if ui.button("Arrange the panels anew").clicked() {
            self.tree = arrangement();
        }
        if ui.add_enabled(current.is_some(), egui::Button::new("Close the trace   Ctrl W")).clicked() {
            self.state.close(self.state.current);
        }
    }

    fn document_picker(&mut self, ui: &mut Ui) {
        let Some(shown) = self.state.current().map(|o| o.document.caption()) else { return };
        let mut chosen = self.state.current;
        let label = ui.label("Trace");
        let picker = egui::ComboBox::from_id_salt("document").selected_text(shown).width(280.0).truncate();
        let picker = picker.show_ui(ui, |ui| {
            for (i, open) in self.state.open.iter().enumerate() {
                ui.selectable_value(&mut chosen, i, open.document.caption());
            }
        });
        picker.response.labelled_by(label.id);
        if chosen != self.state.current {
            // what was looked at is what one compares with
            self.state.base = self.state.current;
            self.state.current = chosen;
            self.state.selection = Selection::None;
        }
    }

    fn bottom_bar(&mut self, ui: &mut Ui) {
        ui.horizontal(|ui| {
            if let Some((bad, message)) = self.message.clone() {
                let colour = if bad { colour::worse(ui.visuals()) } else { colour::better(ui.visuals()) };
                if ui.small_button("×").clicked() {
                    self.message = None;
                }
                ui.add(egui::Label::new(RichText::new(message).color(colour)).truncate());
                return;
            }
            let (selected, ns) = self.state.chosen();
            let Some(open) = self.state.current() else {
                ui.weak("drop a trace here");
                return;
            };
            let document = &open.document;
            if selected.dispatches.is_empty() {
                let device = &document.trace.device;
                let text = format!(
                    "{}   {} [{}, {}, {}]   {}, {}",
                    document.trace.title,
                    device.adapter,
                    device.kind,
                    device.backend,
                    device.driver,
                    count(document.trace.dispatches.len(), "dispatch", "dispatches"),
                    count(document.trace.frames.len(), "run", "runs")
                );
                ui.add(egui::Label::new(RichText::new(text).weak()).truncate());
                return;
            }
            ui.strong(self.state.selection.words(document));
            let dispatches = count(selected.dispatches.len(), "dispatch", "dispatches");
            let parts = document.has_parts(&selected.dispatches);
            ui.label(format!("{dispatches}, {}", part(maybe_time(ns), parts)));
            if let Some((ns, all)) = ns.zip(document.total_ns).filter(|(_, all)| *all > 0.0) {
                ui.label(format!("{} of the kernels' time", part(percent(ns / all), parts)));
            }
            if ui.small_button("×").on_hover_text("select nothing (Esc)").clicked() {
                self.state.selection = Selection::None;
            }
        });
    }

    fn windows(&mut self, ctx: &Context) {
        let mut help = self.help;
        let centre = egui::Align2::CENTER_CENTER;
        egui::Window::new("Keyboard and mouse")
            .open(&mut help)
            .anchor(centre, [0.0, 0.0])
            .resizable(false)
            .collapsible(false)
            .show(ctx, |ui| {
                egui::Grid::new("shortcuts").num_columns(2).spacing([16.0, 4.0]).striped(true).show(ui, |ui| {
                    for (key, what) in SHORTCUTS {
                        ui.monospace(key);
                        ui.label(what);
                        ui.end_row();
                    }
                });
            });
        self.help = help;
        let Some(mut path) = self.path.take() else { return };
        let mut open = true;
        let (mut chosen, mut given_up) = (false, false);
        egui::Window::new("Open a trace")
            .open(&mut open)
            .anchor(centre, [0.0, 0.0])
            .resizable(false)
            .collapsible(false)
            .show(ctx, |ui| {
                let label = ui.weak("A file can be dropped on the window as well. Its path:");
                let field = ui
                    .add(egui::TextEdit::singleline(&mut path).hint_text("path of a .json file").desired_width(360.0));
                field.labelled_by(label.id).request_focus();
                chosen = ui.button("Open").clicked() || ui.input(|i| i.key_pressed(Key::Enter));
                given_up = ui.input(|i| i.key_pressed(Key::Escape));
            });
        if chosen && !path.trim().is_empty() {
            self.asked = Some(path.trim().to_owned());
            self.open(&[path.trim()], ctx);
        } else if open && !given_up && !chosen {
            self.path = Some(path);
        }
    }

    /// Asks for a picture of the window, and cuts the panel out of one that has come.
    fn take_pictures(&mut self, ctx: &Context) {
        if let Some(panel) = self.wanted.take() {
            let (sender, again) = (self.pictures.0.clone(), ctx.clone());
            ctx.request_screenshot(move |image| {
                // the window may have gone meanwhile
                let _gone = sender.send((panel, image));
                again.request_repaint();
            });
        }
        while let Ok((panel, image)) = self.pictures.1.try_recv() {
            let place = self.tree.tiles.find_pane(&panel).and_then(|id| self.tree.tiles.rect(id));
            self.message = Some(match place.map(|rect| png(&image, rect, ctx.pixels_per_point())) {
                None => (true, format!("the panel {} is not shown", panel.title())),
                Some(Err(error)) => (true, error),
                Some(Ok(bytes)) => {
                    let stem = format!("kiln-{}", panel.title().to_lowercase());
                    match self.files.write(&stem, "png", &bytes) {
                        Ok(place) => (false, format!("written to {place}")),
                        Err(error) => (true, error),
                    }
                }
            });
        }
    }

    /// One frame.
    pub fn show(&mut self, ui: &mut Ui) {
        let ctx = ui.ctx().clone();
        update(&mut self.state);
        self.dropped(&ctx);
        self.keys(&ctx);
        egui::Panel::top("top").show(ui, |ui| self.top_bar(ui));
        egui::Panel::bottom("bottom").show(ui, |ui| self.bottom_bar(ui));
        let mut panes = Panes { state: &mut self.state, wanted: None };
        egui::CentralPanel::no_frame().show(ui, |ui| self.tree.ui(&mut panes, ui));
        self.wanted = panes.wanted.or(self.wanted);
        self.windows(&ctx);
        self.obey(&ctx);
        self.take_pictures(&ctx);
        self.typing = self.path.is_some() || ctx.memory(|m| m.focused().is_some()) || egui::Popup::is_any_open(&ctx);
    }
}

/// A part of a picture of the window, as PNG.
fn png(image: &egui::ColorImage, rect: Rect, scale: f32) -> Result<Vec<u8>, String> {
    let part = image.region(&rect, Some(scale));
    let [width, height] = [part.size[0] as u32, part.size[1] as u32];
    let bytes: Vec<u8> = part.pixels.iter().flat_map(|p| p.to_array()).collect();
    let picture = image::RgbaImage::from_raw(width, height, bytes).ok_or("the picture has no pixels")?;
    let mut written = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut written, image::ImageFormat::Png).map_err(|e| e.to_string())?;
    Ok(written.into_inner())
}

impl eframe::App for Viewer {
    fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
        self.show(ui);
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        eframe::set_value(storage, KEY, &(&self.state.settings, &self.tree));
    }
}

struct Panes<'a> {
    state: &'a mut State,
    wanted: Option<Panel>,
}

impl Behavior<Panel> for Panes<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _: TileId, pane: &mut Panel) -> UiResponse {
        let fill = ui.visuals().panel_fill;
        ui.painter().rect_filled(ui.max_rect(), 0.0, fill);
        egui::Frame::new().inner_margin(6).show(ui, |ui| {
            ui.push_id(pane.title(), |ui| pane.show(ui, self.state));
        });
        UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &Panel) -> egui::WidgetText {
        pane.title().into()
    }

    fn simplification_options(&self) -> SimplificationOptions {
        // every panel keeps its title
        SimplificationOptions { all_panes_must_have_tabs: true, ..SimplificationOptions::default() }
    }

    fn top_bar_right_ui(&mut self, tiles: &Tiles<Panel>, ui: &mut Ui, _: TileId, tabs: &egui_tiles::Tabs, _: &mut f32) {
        let Some(pane) = tabs.active.and_then(|id| tiles.get_pane(&id)) else { return };
        ui.add_space(4.0);
        if ui.small_button("⬇").on_hover_text(format!("save {} as a picture", pane.title())).clicked() {
            self.wanted = Some(*pane);
        }
    }
}

//! In: what a live run tells; out: its form, its frame times and its errors, and the documents that it gives. Never waits
//! for the model.

use super::{Command, Event, Figures, Job, Mode, Model, Worker};
use crate::colour;
use crate::model::units::{maybe_time, time};
use crate::state::{Request, State};
use eframe::egui::{self, DragValue, RichText, Ui};
use egui_plot::{Legend, Line, Plot};
use kiln::trace::stats;
use std::collections::VecDeque;

/// Makes workers.
pub type Spawn = Box<dyn Fn() -> Result<Worker, String>>;

/// What is known of a live run.
pub struct Live {
    spawn: Option<Spawn>,
    worker: Option<Worker>,
    /// The adapters' names, once they are known.
    pub adapters: Vec<String>,
    /// What is running.
    pub running: Option<Job>,
    /// Whether something was asked for and has not begun.
    pub starting: bool,
    /// What went wrong last.
    pub error: Option<String>,
    /// The last frames.
    pub history: VecDeque<Figures>,
    /// Frames since the run began.
    pub frames: u64,
    /// Position of its document among the open ones.
    document: Option<usize>,
    /// Whether that was closed while it runs.
    closed: bool,
}

/// Frames in the plot.
const HISTORY: usize = 300;

impl Live {
    /// With a way to make workers.
    pub fn new(spawn: Spawn) -> Live {
        Live { spawn: Some(spawn), ..Live::without_backend() }
    }

    /// Where no model can be run.
    pub fn without_backend() -> Live {
        Live {
            spawn: None,
            worker: None,
            adapters: Vec::new(),
            running: None,
            starting: false,
            error: None,
            history: VecDeque::new(),
            frames: 0,
            document: None,
            closed: false,
        }
    }

    fn send(&mut self, command: Command) {
        if self.worker.is_none() {
            match self.spawn.as_ref().map(|spawn| spawn()) {
                Some(Ok(worker)) => {
                    worker.send(Command::Adapters);
                    self.worker = Some(worker);
                }
                Some(Err(error)) => self.error = Some(error),
                None => self.error = Some("models cannot be run here".into()),
            }
        }
        if let Some(worker) = &self.worker {
            worker.send(command);
        }
    }

    /// Asks for a run; one that is under way ends.
    pub fn start(&mut self, job: Job) {
        self.error = None;
        self.starting = true;
        self.send(Command::Start(job));
        // without a thread there is nothing to wait for
        self.starting = self.worker.is_some();
    }

    /// Asks for its end.
    pub fn stop(&mut self) {
        self.send(Command::Stop);
    }

    /// A document was closed.
    pub fn closed(&mut self, at: usize) {
        self.closed |= self.document == Some(at);
        self.document = match self.document {
            Some(here) if here == at => None,
            Some(here) if here > at => Some(here - 1),
            other => other,
        };
    }
}

/// Takes what the thread has told, without waiting. To be called once a frame.
pub fn update(state: &mut State) {
    let Some(worker) = &state.live.worker else { return };
    for event in worker.take() {
        let live = &mut state.live;
        match event {
            Event::Adapters(adapters) => live.adapters = adapters,
            Event::Started(job) => {
                live.running = Some(job);
                live.starting = false;
                (live.document, live.closed) = (None, false);
                live.history.clear();
                live.frames = 0;
            }
            Event::Frame(figures) => {
                live.frames += 1;
                live.history.push_back(figures);
                if live.history.len() > HISTORY {
                    live.history.pop_front();
                }
            }
            Event::Document(document, timeline) => match live.document {
                Some(at) => state.replace(at, document, timeline),
                None if live.closed => {}
                None => {
                    state.add_made(document, timeline);
                    state.live.document = Some(state.open.len() - 1);
                }
            },
            Event::Stopped => {
                live.running = None;
                live.starting = false;
            }
            Event::Failed(error) => {
                live.error = Some(error);
                live.running = None;
                live.starting = false;
            }
        }
    }
    if state.live.error.as_deref() == Some("the thread that runs models has ended; start again") {
        state.live.worker = None;
    }
}

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    egui::Panel::left("live_form").resizable(false).exact_size(252.0).show(ui, |ui| {
        egui::ScrollArea::vertical().auto_shrink([false, false]).show(ui, |ui| form(ui, state));
    });
    egui::CentralPanel::default().show(ui, |ui| progress(ui, state));
}

fn form(ui: &mut Ui, state: &mut State) {
    let job = &mut state.settings.job;
    egui::Grid::new("job").num_columns(2).spacing([10.0, 5.0]).show(ui, |ui| {
        let label = ui.label("adapter");
        let shown = if job.adapter.is_empty() { "the best" } else { &job.adapter }.to_owned();
        let picker = egui::ComboBox::from_id_salt("adapter").selected_text(shown).width(140.0).truncate();
        let picker = picker.show_ui(ui, |ui| {
            ui.selectable_value(&mut job.adapter, String::new(), "the best");
            for name in &state.live.adapters {
                ui.selectable_value(&mut job.adapter, name.clone(), name);
            }
            if state.live.adapters.is_empty() {
                ui.weak("others are listed after the first run");
            }
        });
        picker.response.labelled_by(label.id);
        ui.end_row();
        let label = ui.label("model");
        let title = |m| match m {
            Model::Gptlite => "GPTlite",
            Model::Dnn => "DNN",
            Model::Checkpoint => "checkpoint",
        };
        let picker = egui::ComboBox::from_id_salt("model").selected_text(title(job.model)).width(140.0);
        let picker = picker.show_ui(ui, |ui| {
            for model in [Model::Gptlite, Model::Dnn, Model::Checkpoint] {
                ui.selectable_value(&mut job.model, model, title(model));
            }
        });
        picker.response.labelled_by(label.id);
        ui.end_row();
        let mut size = |name: &str, value: &mut usize, most: usize| {
            let label = ui.label(name);
            ui.add(DragValue::new(value).range(1..=most).speed(0.2)).labelled_by(label.id);
            ui.end_row();
        };
        if job.model != Model::Checkpoint {
            size("layers", &mut job.layers, 4096);
            size("width", &mut job.width, 16384);
        }
        if job.model == Model::Gptlite {
            size("heads", &mut job.heads, 256);
            size("positions", &mut job.positions, 65536);
        }
        size("batch", &mut job.batch, 65536);
        if job.model == Model::Checkpoint {
            for (name, path) in [("config", &mut job.config), ("weights", &mut job.weights)] {
                let label = ui.label(name);
                let field = egui::TextEdit::singleline(path).hint_text("path of a file").desired_width(134.0);
                ui.add(field).labelled_by(label.id);
                ui.end_row();
            }
        }
        ui.label("mode");
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 3.0;
            for (mode, title) in [(Mode::Eager, "eager"), (Mode::Recorded, "recorded"), (Mode::Fused, "fused")] {
                ui.selectable_value(&mut job.mode, mode, title);
            }
        });
        ui.end_row();
        ui.label("what");
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 3.0;
            ui.selectable_value(&mut job.train, false, "run");
            let train = ui.selectable_value(&mut job.train, true, "train");
            train.on_hover_text(
                "with Adam, each step on a new batch: a GPTlite reads kiln's texts, a DNN images of digits",
            );
        });
        ui.end_row();
        ui.label("precision");
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 3.0;
            ui.selectable_value(&mut job.half, false, "f32");
            ui.selectable_value(&mut job.half, true, "f16");
        });
        ui.end_row();
        ui.label("times of");
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 3.0;
            let each = ui.selectable_value(&mut job.light, false, "each");
            each.on_hover_text("every dispatch by itself, which costs a large device some microseconds each");
            let light = ui.selectable_value(&mut job.light, true, "groups");
            light.on_hover_text("short dispatches together after the first run, so that measuring costs less than 5 %");
        });
        ui.end_row();
    });
    ui.add_space(8.0);
    let (job, running) = (job.clone(), state.live.running.is_some());
    ui.horizontal(|ui| {
        let other = state.live.running.as_ref().is_some_and(|r| *r != job);
        let title = if other { "Run this instead" } else { "Run" };
        if ui.add_enabled(!state.live.starting && (!running || other), egui::Button::new(title)).clicked() {
            state.live.start(job);
        }
        if ui.add_enabled(running, egui::Button::new("Stop")).clicked() {
            state.live.stop();
        }
    });
    let recorded = state.live.document.and_then(|at| state.open.get(at)).map(|open| open.document.clone());
    if ui.add_enabled(recorded.is_some(), egui::Button::new("Save the trace")).clicked()
        && let Some(document) = recorded
    {
        let bytes = document.trace.to_json().into_bytes();
        state.requests.push(Request::Save { stem: "kiln-trace".into(), extension: "json", bytes });
    }
}

fn progress(ui: &mut Ui, state: &mut State) {
    let live = &mut state.live;
    if let Some(error) = live.error.clone() {
        egui::Frame::group(ui.style()).show(ui, |ui| {
            ui.horizontal_wrapped(|ui| {
                ui.label(RichText::new(error).color(colour::worse(ui.visuals())));
                if ui.small_button("dismiss").clicked() {
                    live.error = None;
                }
            });
        });
    }
    if live.starting {
        ui.horizontal(|ui| {
            ui.spinner();
            ui.label("opening the adapter, measuring its peaks, compiling");
        });
    }
    if live.history.is_empty() {
        if !live.starting && live.error.is_none() {
            super::super::panels::hint(
                ui,
                "Nothing runs",
                "Choose a model and press Run. Each run is kept as a trace, so that two can be compared.",
            );
        }
        return;
    }
    let gpu = stats(live.history.iter().filter_map(|h| h.gpu_ns));
    let wall = stats(live.history.iter().map(|h| h.wall_ns));
    let title = live.running.as_ref().map_or("stopped".into(), Job::title);
    ui.horizontal_wrapped(|ui| {
        ui.strong(title);
        ui.label(format!("{} frames", live.frames));
        let words = |name: &str, s: Option<kiln::trace::Stats>| match s {
            None => format!("{name} {}", maybe_time(None)),
            Some(s) => format!("{name} {} (p95 {})", time(s.median), time(s.p95 as f64)),
        };
        ui.label(words("GPU", gpu));
        ui.label(words("wall", wall));
    });
    let first = live.frames - live.history.len() as u64 + 1;
    let at = |i: usize| (first + i as u64) as f64;
    let walls: Vec<[f64; 2]> = live.history.iter().enumerate().map(|(i, h)| [at(i), h.wall_ns as f64]).collect();
    let gpus: Vec<[f64; 2]> =
        live.history.iter().enumerate().filter_map(|(i, h)| h.gpu_ns.map(|ns| [at(i), ns as f64])).collect();
    let losses: Vec<[f64; 2]> =
        live.history.iter().enumerate().filter_map(|(i, h)| h.loss.map(|loss| [at(i), loss])).collect();
    let grey = ui.visuals().weak_text_color();
    let height = ui.available_height();
    if !losses.is_empty() {
        Plot::new("loss")
            .height(height * 0.45)
            .include_y(0.0)
            .y_axis_label("loss")
            .y_axis_min_width(64.0)
            .allow_scroll(false)
            .allow_zoom(false)
            .allow_drag(false)
            .show(ui, |plot| plot.line(Line::new("loss", losses).color(colour::kernel("attention")).width(2.0)));
    }
    Plot::new("frame_times")
        .legend(Legend::default())
        .include_y(0.0)
        .x_axis_label("frame")
        .y_axis_formatter(|mark, _| if mark.value < 0.0 { String::new() } else { time(mark.value) })
        .y_axis_min_width(64.0)
        .allow_scroll(false)
        .allow_zoom(false)
        .allow_drag(false)
        .show(ui, |plot| {
            plot.line(Line::new("wall", walls).color(grey).width(1.5));
            plot.line(Line::new("GPU", gpus).color(colour::kernel("matmul")).width(2.0));
        });
}

//! In: what to run; out: frames and a document that grows, made on a thread of their own. Knows neither egui nor which
//! library runs the model: that is a [`Backend`]'s.
//!
//! The window sends [`Command`]s and takes what has come without waiting. The thread derives all that panels need, so
//! that the window does not; a bounded channel holds it back while nobody looks.

pub mod batches;
// a browser neither blocks nor has threads
#[cfg(not(target_arch = "wasm32"))]
pub mod device;
pub mod panel;

use crate::model::document::Document;
use crate::model::timeline::Timeline;
use kiln::trace::{Frame, Trace};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::{Duration, Instant};

/// Which model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Model {
    /// A decoder with new parameters.
    #[default]
    Gptlite,
    /// Linear layers with a ReLU after each, with new parameters.
    Dnn,
    /// A GPTlite or a DNN from files.
    Checkpoint,
}

/// How it is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// As written, a submit for each dispatch.
    Eager,
    /// As written, in one submit.
    Recorded,
    /// Lifted and fused.
    #[default]
    Fused,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Job {
    /// Part of the adapter's name; empty takes the best.
    pub adapter: String,
    /// Which model.
    pub model: Model,
    /// How it is run.
    pub mode: Mode,
    /// Whether it is trained, on new batches of text or digits, instead of run.
    pub train: bool,
    /// Parameters and activations in f16; in training activations alone.
    pub half: bool,
    /// Short dispatches timed together, so that measuring costs little, instead of each by itself.
    pub light: bool,
    /// Layers, or blocks.
    pub layers: usize,
    /// Columns between layers.
    pub width: usize,
    /// Heads of a GPTlite.
    pub heads: usize,
    /// Positions of a GPTlite, S.
    pub positions: usize,
    /// Sequences or rows, B.
    pub batch: usize,
    /// Config file of a checkpoint.
    pub config: String,
    /// Parameter file of a checkpoint.
    pub weights: String,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            adapter: String::new(),
            model: Model::Gptlite,
            mode: Mode::Fused,
            train: false,
            half: false,
            light: false,
            layers: 4,
            width: 128,
            heads: 4,
            positions: 128,
            batch: 1,
            config: String::new(),
            weights: String::new(),
        }
    }
}

impl Job {
    /// `GPTlite 4 × 128, S = 128, fused`.
    pub fn title(&self) -> String {
        let mode = match self.mode {
            Mode::Eager => "eager",
            Mode::Recorded => "recorded",
            Mode::Fused => "fused",
        };
        let half = match (self.half, self.train) {
            (true, true) => ", f16, training",
            (true, false) => ", f16",
            (false, true) => ", training",
            (false, false) => "",
        };
        match self.model {
            Model::Gptlite => {
                format!(
                    "GPTlite {} × {}, B = {}, S = {}{half}, {mode}",
                    self.layers, self.width, self.batch, self.positions
                )
            }
            Model::Dnn => format!("DNN {} × {}, B = {}{half}, {mode}", self.layers, self.width, self.batch),
            Model::Checkpoint => format!("{}{half}, {mode}", self.config),
        }
    }
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its times.
    pub frame: Frame,
    /// The loss, where the model is trained.
    pub loss: Option<f64>,
}

/// What runs models.
pub trait Backend {
    /// The adapters in words.
    ///
    /// # Errors
    /// In words.
    fn adapters(&mut self) -> Result<Vec<String>, String>;

    /// Compiles, and describes the program in a trace without frames.
    ///
    /// # Errors
    /// In words; nothing runs then.
    fn open(&mut self, job: &Job) -> Result<Trace, String>;

    /// Runs once.
    ///
    /// # Errors
    /// In words; nothing runs any more then.
    fn step(&mut self) -> Result<Step, String>;
}

/// What the window asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// To list adapters.
    Adapters,
    /// To compile and run until told otherwise.
    Start(Job),
    /// To run no more.
    Stop,
}

/// What the thread tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// The adapters.
    Adapters(Vec<String>),
    /// A run begins.
    Started(Job),
    /// A frame is done.
    Frame(Figures),
    /// The trace so far.
    Document(Arc<Document>, Arc<Timeline>),
    /// No more runs, as was asked.
    Stopped,
    /// No more runs, and why.
    Failed(String),
}

/// What is plotted of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Nanoseconds on the device, where known.
    pub gpu_ns: Option<u64>,
    /// Nanoseconds from submit to results.
    pub wall_ns: u64,
    /// The loss, where the model is trained.
    pub loss: Option<f64>,
}

/// A thread that runs models.
pub struct Worker {
    commands: Sender<Command>,
    events: Receiver<Event>,
}

/// Frames that a live trace holds: the last ones.
const KEPT: usize = 64;

/// How often the trace so far is sent.
const REFRESH: Duration = Duration::from_millis(500);

/// Events that wait before the thread does.
const WAITING: usize = 64;

impl Worker {
    /// Starts the thread. `wake` is called when something was told.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start<B: Backend>(
        backend: impl FnOnce() -> B + Send + 'static,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Worker, String> {
        let (commands, received) = channel();
        let (sender, events) = sync_channel(WAITING);
        let work = move || {
            let mut thread = Thread { backend: backend(), events: sender, wake, running: None };
            // it ends when the window has gone
            let _ended = thread.run(&received);
        };
        std::thread::Builder::new().name("live".into()).spawn(work).map_err(|e| format!("no thread: {e}"))?;
        Ok(Worker { commands, events })
    }

    /// Asks for something. What a thread that has ended is asked, [`Worker::take`] answers.
    pub fn send(&self, command: Command) {
        let _ended = self.commands.send(command);
    }

    /// What was told since the last call, without waiting.
    pub fn take(&self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Empty) => return events,
                Err(TryRecvError::Disconnected) => {
                    events.push(Event::Failed("the thread that runs models has ended; start again".into()));
                    return events;
                }
            }
        }
    }
}

/// A trace that grows.
struct Running {
    trace: Trace,
    name: String,
    sent: Option<Instant>,
}

struct Thread<B, W> {
    backend: B,
    events: SyncSender<Event>,
    wake: W,
    running: Option<Running>,
}

/// The window has gone.
struct Gone;

impl<B: Backend, W: Fn()> Thread<B, W> {
    fn tell(&self, event: Event) -> Result<(), Gone> {
        self.events.send(event).map_err(|_| Gone)?;
        (self.wake)();
        Ok(())
    }

    fn run(&mut self, commands: &Receiver<Command>) -> Result<(), Gone> {
        loop {
            // while something runs commands come between its steps
            let command = match self.running {
                None => Some(commands.recv().map_err(|_| Gone)?),
                Some(_) => match commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => return Err(Gone),
                },
            };
            match command {
                Some(command) => self.obey(command)?,
                None => self.step()?,
            }
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), Gone> {
        match command {
            Command::Adapters => match self.backend.adapters() {
                Ok(adapters) => self.tell(Event::Adapters(adapters)),
                Err(error) => self.tell(Event::Failed(error)),
            },
            Command::Start(job) => {
                self.send_document()?;
                self.running = None;
                match self.backend.open(&job) {
                    Ok(trace) => {
                        self.running = Some(Running { trace, name: job.title(), sent: None });
                        self.tell(Event::Started(job))
                    }
                    Err(error) => self.tell(Event::Failed(error)),
                }
            }
            Command::Stop => {
                self.send_document()?;
                self.running = None;
                self.tell(Event::Stopped)
            }
        }
    }

    fn step(&mut self) -> Result<(), Gone> {
        match self.backend.step() {
            Ok(Step { frame, loss }) => {
                let told = Event::Frame(Figures { gpu_ns: frame.gpu_ns(), wall_ns: frame.wall_ns, loss });
                if let Some(running) = &mut self.running {
                    running.trace.frames.push(frame);
                    let over = running.trace.frames.len().saturating_sub(KEPT);
                    running.trace.frames.drain(..over);
                }
                self.tell(told)?;
                if self.running.as_ref().is_some_and(|r| r.sent.is_none_or(|at| at.elapsed() >= REFRESH)) {
                    self.send_document()?;
                }
                Ok(())
            }
            Err(error) => {
                self.send_document()?;
                self.running = None;
                self.tell(Event::Failed(error))
            }
        }
    }

    fn send_document(&mut self) -> Result<(), Gone> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if running.trace.frames.is_empty() {
            return Ok(());
        }
        running.sent = Some(Instant::now());
        let document = Document::new(running.name.clone(), running.trace.clone());
        let timeline = Timeline::of(&document);
        self.tell(Event::Document(Arc::new(document), Arc::new(timeline)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// Opens slowly, runs slowly, and fails at the fourth step.
    struct Slow {
        steps: usize,
    }

    impl Backend for Slow {
        fn adapters(&mut self) -> Result<Vec<String>, String> {
            Ok(vec!["sample device".into()])
        }

        fn open(&mut self, job: &Job) -> Result<Trace, String> {
            std::thread::sleep(Duration::from_millis(30));
            if job.layers == 0 {
                return Err("a model has layers".into());
            }
            Ok(Trace { frames: Vec::new(), ..sample::trace() })
        }

        fn step(&mut self) -> Result<Step, String> {
            std::thread::sleep(Duration::from_millis(5));
            self.steps += 1;
            if self.steps > 3 {
                return Err("device lost: a test; open a new session".into());
            }
            Ok(Step { frame: sample::trace().frames[0].clone(), loss: Some(1.0) })
        }
    }

    /// All events until one is wanted.
    fn until(worker: &Worker, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut all: Vec<Event> = Vec::new();
        while !all.iter().any(&wanted) {
            all.extend(worker.take());
            std::thread::yield_now();
        }
        all
    }

    #[test]
    fn frames_come_then_the_trace_and_an_error_ends_the_run_alone() {
        let worker = Worker::start(|| Slow { steps: 0 }, || ()).unwrap();
        worker.send(Command::Adapters);
        worker.send(Command::Start(Job::default()));
        let events = until(&worker, |e| matches!(e, Event::Failed(_)));
        assert!(matches!(&events[0], Event::Adapters(a) if a[..] == ["sample device"]));
        assert!(matches!(&events[1], Event::Started(_)));
        assert_eq!(
            events.iter().filter(|e| matches!(e, Event::Frame(Figures { gpu_ns: Some(_), loss: Some(_), .. }))).count(),
            3
        );
        let last = events.iter().rev().find_map(|e| match e {
            Event::Document(document, _) => Some(document.trace.frames.len()),
            _ => None,
        });
        assert_eq!(last, Some(3), "what was run is kept");
        // the thread lives on
        worker.send(Command::Start(Job { layers: 0, ..Job::default() }));
        let events = until(&worker, |e| matches!(e, Event::Failed(_)));
        assert!(matches!(&events[..], [Event::Failed(e)] if e == "a model has layers"));
        worker.send(Command::Stop);
        until(&worker, |e| matches!(e, Event::Stopped));
    }

    #[test]
    fn asking_and_taking_never_wait_for_the_model() {
        let worker = Worker::start(|| Slow { steps: 0 }, || ()).unwrap();
        worker.send(Command::Start(Job::default()));
        // the backend sleeps for 30 ms now
        assert!(worker.take().is_empty());
    }

    struct Dying;

    impl Backend for Dying {
        fn adapters(&mut self) -> Result<Vec<String>, String> {
            panic!("a driver that panics")
        }

        fn open(&mut self, _: &Job) -> Result<Trace, String> {
            Err(String::new())
        }

        fn step(&mut self) -> Result<Step, String> {
            Err(String::new())
        }
    }

    #[test]
    fn a_thread_that_dies_is_an_error_in_words() {
        let worker = Worker::start(|| Dying, || ()).unwrap();
        worker.send(Command::Adapters);
        let events = until(&worker, |e| matches!(e, Event::Failed(_)));
        assert!(matches!(&events[0], Event::Failed(e) if e == "the thread that runs models has ended; start again"));
    }
}

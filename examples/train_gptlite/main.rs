//! Trains a character GPTlite on a text, by default the project's own sources and docs, and continues it with what was
//! learned. Weights, sizes and all that a training goes on with are saved to a folder: the `gptlite` example runs it, and
//! `--resume` goes on.

mod corpus;
#[path = "../gptlite/generator.rs"]
mod generator;
#[path = "../gptlite/sample.rs"]
mod sample;
mod settings;
mod windows;

use clap::Parser;
use corpus::Corpus;
use generator::Generator;
use indicatif::{ProgressBar, ProgressStyle};
use kiln::gpu::AdapterChoice;
use kiln::model::{Gptlite, GptliteFile, Init, Loss, ModelConfig, init};
use kiln::session::{CompileOptions, Program, Session};
use kiln::tensor::Tensor;
use kiln::trainer::Trainer;
use sample::Sampler;
use settings::{Flags, Settings};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use windows::{Batch, Windows};

#[derive(Parser)]
#[command(about = "Trains a character GPTlite on a text")]
struct Args {
    #[command(flatten)]
    flags: Flags,
    /// Folder for the weights, sizes and state of the training.
    #[arg(long, value_name = "DIR", default_value = "target/train_gptlite")]
    out: PathBuf,
    /// Go on with the training in that folder, as it was begun; --steps may give it more steps.
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Begin anew where the folder has a training.
    #[arg(long)]
    overwrite: bool,
    /// Steps in one submit.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    per_submit: u64,
    /// Steps from one validation to the next; each also saves.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: u64,
    /// Characters of the sample at the end.
    #[arg(long, default_value_t = 300)]
    sample: usize,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
}

/// Batches of a validation on the way; the one at the end goes over the whole part.
const VALIDATION_BATCHES: usize = 16;

/// Where sizes, vocabulary and settings lie in the folder.
const CONFIG: &str = "config.json";

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let config = args.out.join(CONFIG);
    let mut settings = match args.resume {
        true => Settings::resume(&config, &args.flags)?,
        false if config.exists() && !args.overwrite => {
            let out = args.out.display();
            return Err(format!("{out} holds a training; go on with --resume, begin another with --out DIR, or replace it with --overwrite").into());
        }
        false => Settings::new(&args.flags)?,
    };
    let corpus = corpus(&mut settings, args.resume.then_some(&config))?;
    let windows = |what, tokens| Windows::new(what, tokens, settings.batch, settings.block);
    let training = windows("training", &corpus.training)?;
    let validation = windows("validation", &corpus.validation)?;
    let interrupted = on_interrupt()?;

    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("adapter: {}", session.adapter());
    let model = Gptlite::new(settings.model(&corpus.vocabulary));
    let forward = model.build_training(settings.batch, settings.block, Loss::CrossEntropy)?;
    let params = init(&forward.layout, Init::Default, settings.seed)?;
    let trainer = session.trainer(&forward, &params, &settings.options(), &CompileOptions::default())?;
    if args.resume {
        trainer.load(&args.out)?;
        println!("going on after step {} of {}", trainer.steps(), settings.steps);
    }
    let count: usize = params.values().map(|p| p.shape().elements()).sum();
    println!(
        "{count} parameters: {} layers of {}, {} heads, block {}, batch {}; {} dispatches a step, {}",
        settings.layers,
        settings.width,
        settings.heads,
        settings.block,
        settings.batch,
        trainer.program().dispatches(),
        trainer.program().plan()
    );
    let plain = Gptlite::new(model.config.clone().with_dropout(0.0));
    let evaluation = plain.build_training(settings.batch, settings.block, Loss::CrossEntropy)?;
    let evaluation = trainer.inference(&evaluation, &CompileOptions::default())?;
    let job = Job { args, settings: &settings, corpus: &corpus, trainer: &trainer, evaluation: &evaluation };
    if !job.train(&training, &validation.even(VALIDATION_BATCHES), &interrupted)? {
        println!(
            "stopped after step {} of {}; to go on:\n  cargo run --release --example train_gptlite -- --out {} --resume",
            trainer.steps(),
            settings.steps,
            args.out.display()
        );
        return Ok(());
    }
    let reached = job.evaluate(&validation.even(usize::MAX))?;
    if args.sample > 0 {
        println!("\nsample at temperature 0.8:\n{}\n", job.sample(&session)?);
    }
    let entropies = corpus.entropies();
    println!("nats a character:");
    println!("  {:.3} unigram entropy of the text", entropies.unigram);
    println!("  {:.3} bigram entropy of the text, which no table of pairs beats on it", entropies.bigram);
    println!(
        "  {:.3} such a table on the validation part, counted on the training part with 1 added to each pair",
        entropies.bigram_held_out
    );
    println!("  {reached:.3} this model on the whole validation part");
    println!(
        "saved; to continue a text with it:\n  cargo run --release --example gptlite -- --weights {0} --config {1} \
         --prompt \"…\"",
        args.out.join("model.safetensors").display(),
        config.display()
    );
    Ok(())
}

/// The text's tokens, with the vocabulary that a training that goes on began with.
fn corpus(settings: &mut Settings, resumed: Option<&PathBuf>) -> Result<Corpus, Box<dyn Error>> {
    let vocabulary = match resumed.map(ModelConfig::open).transpose()? {
        Some(ModelConfig::Gptlite(GptliteFile { vocabulary, .. })) => vocabulary,
        _ => None,
    };
    let corpus = Corpus::new(&corpus::read(settings.text.as_deref())?, vocabulary)?;
    let (characters, kinds) = corpus.left_out;
    println!(
        "text: {}, {} characters to train on, {} to validate; vocabulary of {}, {characters} characters of {kinds} rare \
         kinds left out",
        settings.text.as_ref().map_or("the project's sources and docs".into(), |t| t.display().to_string()),
        corpus.training.len(),
        corpus.validation.len(),
        corpus.vocabulary.size()
    );
    if resumed.is_some() && settings.fingerprint != corpus.fingerprint {
        println!("warning: the text has changed since this training was saved; it goes on with the text of now");
    }
    settings.fingerprint.clone_from(&corpus.fingerprint);
    Ok(corpus)
}

/// A flag that the first Ctrl-C sets; the second ends the program.
fn on_interrupt() -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing this submit, then saving; once more ends at once");
    })?;
    Ok(interrupted)
}

/// A training and where it goes.
struct Job<'a> {
    args: &'a Args,
    settings: &'a Settings,
    corpus: &'a Corpus,
    trainer: &'a Trainer,
    /// The loss without dropout.
    evaluation: &'a Program,
}

impl Job<'_> {
    /// Trains to the last step, or until it is interrupted, and saves; whether it came to the end.
    fn train(
        &self,
        training: &Windows,
        validation: &[Batch],
        interrupted: &AtomicBool,
    ) -> Result<bool, Box<dyn Error>> {
        let Job { args, settings, trainer, .. } = *self;
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} steps, {msg}, {eta} left")?;
        let bar = ProgressBar::new(settings.steps).with_position(trainer.steps()).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(500));
        let (mut loss, mut last) = (f32::NAN, None);
        let (mut seconds, mut steps, mut skipped) = (0.0, 0, 0);
        while trainer.steps() < settings.steps && !interrupted.load(Ordering::Relaxed) {
            let first = trainer.steps();
            let to_validation = args.validate_every - first % args.validate_every;
            let end = settings.steps.min(first + args.per_submit.min(to_validation));
            let batches: Vec<Batch> = (first..end).map(|step| training.of_step(settings.seed, step)).collect();
            let begin = Instant::now();
            let reports = trainer.run_steps(&batches.iter().map(refs).collect::<Vec<_>>())?;
            seconds += begin.elapsed().as_secs_f64();
            steps += end - first;
            // a single batch says little
            skipped += reports.iter().filter(|report| report.skipped).count();
            for report in reports.iter().filter(|report| !report.skipped) {
                loss = if loss.is_nan() { report.loss } else { 0.95 * loss + 0.05 * report.loss };
            }
            let speed = (steps as usize * settings.batch * settings.block) as f64 / seconds;
            if end % args.validate_every == 0 || end == settings.steps {
                let validation = self.evaluate(validation)?;
                last = Some(validation);
                self.save()?;
                let mut line = format!("step {end}: loss {loss:.3}, validation {validation:.3}, {speed:.0} tokens/s");
                if skipped > 0 {
                    line += &format!(", {skipped} steps skipped whose gradients f16 could not hold");
                }
                bar.suspend(|| println!("{line}"));
                (seconds, steps, skipped) = (0.0, 0, 0);
            }
            let validation = last.map_or("-".into(), |loss: f64| format!("{loss:.3}"));
            bar.set_message(format!("loss {loss:.3}, validation {validation}, {speed:.0} tokens/s"));
            bar.set_position(end);
        }
        bar.finish_and_clear();
        self.save()?;
        Ok(trainer.steps() >= settings.steps)
    }

    /// Writes the weights, all that the training goes on with, and config.json.
    fn save(&self) -> Result<(), Box<dyn Error>> {
        self.trainer.save(&self.args.out)?;
        self.settings.write(&self.args.out.join(CONFIG), &self.corpus.vocabulary)
    }

    /// The mean loss of some batches, with the weights of now.
    fn evaluate(&self, batches: &[Batch]) -> Result<f64, Box<dyn Error>> {
        self.trainer.refresh(self.evaluation)?;
        let mut sum = 0.0;
        for some in batches.chunks(self.args.per_submit as usize) {
            let runs = self.evaluation.submit_all(&some.iter().map(refs).collect::<Vec<_>>())?.wait_all()?;
            sum += runs.iter().map(|outputs| outputs["loss"].to_f64()[0]).sum::<f64>();
        }
        Ok(sum / batches.len() as f64)
    }

    /// A text that begins with a line of its own.
    fn sample(&self, session: &Session) -> Result<String, Box<dyn Error>> {
        let corpus = self.corpus;
        let model = self.settings.model(&corpus.vocabulary);
        let params = self.trainer.parameters()?;
        let generator = Generator::new(session, &model, &corpus.vocabulary, &params, &CompileOptions::default())?;
        let mut sampler = Sampler::new(0.8, 0, self.settings.seed)?;
        let mut tokens = corpus.vocabulary.encode("\n").unwrap_or_else(|_| vec![0]);
        for _ in 0..self.args.sample {
            let outputs = generator.submit(&tokens)?.wait()?;
            tokens.push(sampler.pick(&outputs["logits"], &outputs["next"]));
        }
        Ok(generator.vocabulary.decode(&tokens)?)
    }
}

fn refs(batch: &Batch) -> [(&str, &Tensor); 2] {
    batch.each_ref().map(|(name, tensor)| (*name, tensor))
}

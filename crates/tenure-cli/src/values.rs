//! The types of values on the command line, and the functions that parse others.

use std::fmt;
use std::num::NonZeroU64;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tenure::replay::AllocatorKind;
use tenure::tier::Medium;
use tenure::units::parse_bytes;

/// The options that choose a trace of a file.
#[derive(Args)]
pub(crate) struct TraceSource {
    /// The device to read, if the snapshot has several [default: the one with the most bytes]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
}

/// The driver to use.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DriverKind {
    /// A simulated device
    Sim,
    /// NVIDIA's driver, on real devices
    Cuda,
}

/// The allocators to replay on.
#[derive(Clone, Copy)]
pub(crate) enum Allocators {
    One(AllocatorKind),
    All,
}

impl Allocators {
    pub(crate) fn kinds(self) -> Vec<AllocatorKind> {
        match self {
            Self::One(kind) => vec![kind],
            Self::All => AllocatorKind::ALL.to_vec(),
        }
    }
}

impl ValueEnum for Allocators {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Allocators; 1 + AllocatorKind::ALL.len()] = {
            let mut all = [Allocators::All; 1 + AllocatorKind::ALL.len()];
            let mut index = 0;
            while index < AllocatorKind::ALL.len() {
                all[index] = Allocators::One(AllocatorKind::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::One(kind) => kind.name(),
            Self::All => "all",
        }))
    }
}

/// The objective of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectiveName {
    /// The share of accessed bytes that the first tier serves; tensors stay where they are
    Score,
    /// The time that an iteration takes
    Time,
}

/// A planner, or a rule that places tensors in a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlannerName {
    /// Tensors in the order in which they are created
    FirstTouch,
    /// Weights first, then the others in the order in which they are created
    WeightsFirst,
    /// The others first, then weights
    ActivationsFirst,
    /// The most accessed bytes per byte first
    Hotness,
    /// The most accessed bytes per byte and kernel of the lifetime first
    Density,
    /// FlashNeuron's two phases
    Flashneuron,
    /// Tenure's own planner: prices of room and links, then evolution
    Scheduled,
    /// A mixed-integer program, solved by HiGHS, in a build with the feature `milp`
    Milp,
    /// Evolutionary search
    Evolutionary,
    /// Neural networks that learned to plan on other programs (experimental)
    Marl,
    /// All of them, one after the other
    All,
}

impl PlannerName {
    /// Returns a parser of the planners that keep a training run within a budget.
    pub(crate) fn of_a_budget() -> impl TypedValueParser<Value = Self> {
        let evolutionary = Self::Evolutionary.to_possible_value();
        let values = [
            Self::Flashneuron.to_possible_value(),
            Self::Scheduled.to_possible_value(),
            evolutionary.map(|value| value.help("Evolutionary search from random plans")),
            Self::Milp.to_possible_value(),
        ];
        let parser = PossibleValuesParser::new(values.into_iter().flatten());
        parser.try_map(|name| <Self as ValueEnum>::from_str(&name, false))
    }
}

/// The data that the user of `tenure train` named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataSpec {
    FashionMnist(Option<PathBuf>),
    Images(PathBuf),
    Text(PathBuf),
}

impl FromStr for DataSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, path) = text.split_once(':').map_or((text, None), |(kind, path)| (kind, Some(path)));
        match (kind, path.filter(|path| !path.is_empty()).map(without_current_dir)) {
            ("fashion-mnist", folder) => Ok(Self::FashionMnist(folder)),
            ("images", Some(folder)) => Ok(Self::Images(folder)),
            ("text", Some(file)) => Ok(Self::Text(file)),
            _ => Err("expected fashion-mnist, fashion-mnist:DIR, images:DIR or text:FILE".into()),
        }
    }
}

/// Removes `./`, so that `./images` and `images` are the same data to a checkpoint.
fn without_current_dir(path: &str) -> PathBuf {
    let parts: PathBuf = Path::new(path).components().filter(|part| *part != Component::CurDir).collect();
    if parts.as_os_str().is_empty() { ".".into() } else { parts }
}

impl fmt::Display for DataSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FashionMnist(None) => f.write_str("fashion-mnist"),
            Self::FashionMnist(Some(folder)) => write!(f, "fashion-mnist:{}", folder.display()),
            Self::Images(folder) => write!(f, "images:{}", folder.display()),
            Self::Text(file) => write!(f, "text:{}", file.display()),
        }
    }
}

/// A memory tier: the name that a problem gives it, and the medium that it is on.
#[derive(Clone, Debug)]
pub(crate) struct TierSpec {
    pub(crate) name: String,
    pub(crate) medium: Medium,
    pub(crate) capacity: Option<u64>,
}

impl FromStr for TierSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, medium) = text.split_once('=').ok_or("expected NAME=MEDIUM, as in DRAM=dram@8GiB")?;
        let (medium, capacity) = Medium::with_capacity(medium).map_err(|error| error.to_string())?;
        Ok(Self { name: name.to_owned(), medium, capacity })
    }
}

/// Parses a whole number whose type excludes zero.
pub(crate) fn parse_above_zero<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number above 0".to_owned())
}

/// Parses a size above zero, in bytes.
pub(crate) fn parse_size_above_zero(text: &str) -> Result<NonZeroU64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    NonZeroU64::new(bytes).ok_or_else(|| "expected a size above 0".to_owned())
}

/// Parses the seed of random numbers.
pub(crate) fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// Parses a finite number above zero.
pub(crate) fn parse_positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("expected a number above 0".into()) }
}

/// Parses a number above 0 that is not too large for a time in seconds.
pub(crate) fn parse_up_to_a_billion(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| "expected a number above 0, of at most a billion".into())
}

/// Parses a time in seconds, of at most some thirty years.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    if (0.0..1e9).contains(&seconds) { Ok(seconds) } else { Err("expected from 0 to 1e9 seconds".into()) }
}

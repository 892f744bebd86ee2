//! The values of options, as clap takes them from text.

use std::time::Duration;

use ckpt_passes::operators::variants::APPROXIMATIONS;
use ckpt_passes::runtime::Release;
use ckpt_passes::runtime::level::Level;
use ckpt_passes::runtime::order::ExecutionOrder;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::strategy::Strategy;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::inputs::{Budget, SizeProblem};
use crate::options::Options;

/// A dimension, and its size where that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) name: String,
    pub(super) size: Option<u64>,
}

pub(super) const DIMENSION: &str =
    "expected NAME=N with a whole number N of at least 1, for example batch=8";

pub(super) fn parse_budget(text: &str) -> Result<Budget, SizeProblem> {
    text.parse()
}

pub(super) fn parse_percent(text: &str) -> Result<f64, &'static str> {
    let percent = text.trim().trim_end_matches('%').trim_end();
    let part = percent.parse::<f64>().ok().map(|percent| percent / 100.0);
    part.filter(|part| part.is_finite() && *part >= 0.0)
        .ok_or("expected a part of a step from 0 up, such as 10%")
}

pub(super) fn parse_threads(text: &str) -> Result<u32, String> {
    let (range, threads) = (Options::THREADS, text.trim().parse().ok());
    threads
        .filter(|threads| range.contains(threads))
        .ok_or_else(|| {
            format!(
                "expected a whole number from {} to {}",
                range.start(),
                range.end()
            )
        })
}

pub(super) fn parse_seed(text: &str) -> Result<u64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

pub(super) fn strategies() -> impl TypedValueParser<Value = Strategy> {
    PossibleValuesParser::new(Strategy::ALL.map(Strategy::name)).try_map(|name| name.parse())
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|&s: &f64| s > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a number of seconds above 0, such as 30 or 0.5".to_owned())
}

/// What `--runtime` takes.
pub(super) fn releases() -> PossibleValuesParser {
    PossibleValuesParser::new(Release::ALL.map(|release| release.name))
}

/// What `--order` takes.
pub(super) fn orders() -> PossibleValuesParser {
    let name = |(name, order): (&'static str, Option<ExecutionOrder>)| {
        PossibleValue::new(name).aliases(order.map(ExecutionOrder::name))
    };
    PossibleValuesParser::new(Promise::ORDERS.map(name))
}

/// What `--level` takes.
pub(super) fn levels() -> PossibleValuesParser {
    let name = |(name, level): (&'static str, Option<Level>)| {
        PossibleValue::new(name).aliases(level.map(Level::name))
    };
    PossibleValuesParser::new(Promise::LEVELS.map(name))
}

pub(super) fn approximations() -> PossibleValuesParser {
    PossibleValuesParser::new(APPROXIMATIONS.iter().map(|one| one.name))
}

pub(super) fn parse_dimension(text: &str) -> Result<Dimension, &'static str> {
    let Some((name, size)) = text.rsplit_once('=') else {
        let name = text.trim();
        let dimension = Dimension {
            name: name.to_owned(),
            size: None,
        };
        return (!name.is_empty()).then_some(dimension).ok_or(DIMENSION);
    };
    match size.trim().parse() {
        Ok(size) if size > 0 && !name.trim().is_empty() => Ok(Dimension {
            name: name.trim().to_owned(),
            size: Some(size),
        }),
        _ => Err(DIMENSION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_names_with_numbers() {
        let dimension = |name: &str, size| Dimension {
            name: name.to_owned(),
            size,
        };
        assert_eq!(parse_dimension("batch=8"), Ok(dimension("batch", Some(8))));
        assert_eq!(parse_dimension("a=b=8"), Ok(dimension("a=b", Some(8))));
        assert_eq!(parse_dimension("batch"), Ok(dimension("batch", None)));
        for text in [
            "",
            "batch=",
            "=8",
            "batch=0",
            "batch=-1",
            "batch=8.5",
            "batch=x",
        ] {
            assert!(parse_dimension(text).is_err(), "{text}");
        }
    }
}

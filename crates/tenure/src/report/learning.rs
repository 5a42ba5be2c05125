//! The report on a planner's learned policy.

use maud::{Markup, html};
use tenure_agent::train::{Stage, TrainProgress};

use super::axis::{BINS, Span, Unit};
use super::chart::{Chart, DrawnAs, Series};
use super::html::{self, document, figure, section};

/// A report on the training of the planner marl's policy: one HTML file with its learning curves.
pub struct LearningReport<'a> {
    title: &'a str,
    facts: &'a [(&'static str, String)],
    curve: &'a [TrainProgress],
}

impl<'a> LearningReport<'a> {
    /// Makes a report called `title`. `facts` are the settings and results of the training.
    pub fn new(title: &'a str, facts: &'a [(&'static str, String)], curve: &'a [TrainProgress]) -> Self {
        Self { title, facts, curve }
    }

    /// Returns the whole report: one HTML file.
    pub fn html(&self) -> String {
        let mut body = html::header("Learning report", self.title, &Markup::default(), self.facts);
        let stages = [
            (
                Stage::Prices,
                "Prices",
                "Prices over the steps of training.",
                "Tensors that stay where they are: the best bound that is known over that of the prices, on problems that were \
                 not trained on. 1 is the best there can be.",
            ),
            (
                Stage::Leanings,
                "Leanings",
                "Leanings over the steps of training.",
                "Tensors that may move or be computed again: how many times less a plan takes than the density rule's, \
                 without a search, on problems that were not trained on and whose costs are not what was told.",
            ),
        ];
        for (stage, title, description, text) in stages {
            let points: Vec<&TrainProgress> = self.curve.iter().filter(|point| point.stage == stage).collect();
            if let Some(last) = points.last() {
                let values = points.iter().map(|point| match stage {
                    Stage::Prices => (point.step, point.validation),
                    Stage::Leanings => (point.step, point.validation.exp()),
                });
                let values: Vec<(u64, f64)> = values.collect();
                let span = Span::Steps(last.step.max(1));
                let series = vec![Series::of_numbers("validation", "smooth", DrawnAs::Line, joined(&values))];
                let chart = Chart::new(title, self.title, description, span, Unit::Number, series);
                body = html! { (body) (section(title, text, figure(&chart))) };
            }
        }
        document(self.title, &body, "Between the points at which it was validated, lines are straight.")
    }
}

/// Returns a value for each bin of the steps up to the last: linear interpolation between `points`, which are in order.
fn joined(points: &[(u64, f64)]) -> Vec<f64> {
    let end = points.last().map_or(0, |(step, _)| *step) as f64;
    (0..BINS)
        .map(|bin| {
            let step = end * bin as f64 / (BINS - 1) as f64;
            let next = points.partition_point(|&(other, _)| other as f64 <= step).min(points.len() - 1);
            let ((before, from), (after, to)) = (points[next.saturating_sub(1)], points[next]);
            let share = (step - before as f64) / (after.saturating_sub(before)).max(1) as f64;
            from + (to - from) * share.clamp(0.0, 1.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_joined_at_the_steps_that_they_are_of() {
        let values = joined(&[(0, 1.0), (10, 2.0), (40, 8.0)]);
        assert_eq!((values.len(), values[0], values[BINS - 1]), (BINS, 1.0, 8.0));
        // A quarter of the way is step 10.
        assert!((values[(BINS - 1) / 4] - 2.0).abs() < 0.1, "{}", values[(BINS - 1) / 4]);
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(joined(&[(5, 3.0)]), [3.0; BINS]);
    }

    #[test]
    fn each_stage_that_was_reached_has_a_curve() {
        let point = |stage, step, validation| TrainProgress { stage, step, steps: 2, validation };
        let mut curve = vec![point(Stage::Prices, 0, 0.5), point(Stage::Prices, 2, 0.9)];
        let facts = [("seed", "3".to_owned())];
        let html = |curve: &[TrainProgress]| LearningReport::new("A policy", &facts, curve).html();
        let first = html(&curve);
        assert!(first.contains("Prices: A policy") && !first.contains("Leanings: A policy"));
        curve.push(point(Stage::Leanings, 1, -0.1));
        assert!(html(&curve).contains("Leanings: A policy"));
    }
}

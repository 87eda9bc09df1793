//! Tells what a run waits for where it waits for data, and which flag helps.

use super::Paced;
use crate::{Cache, Observer};
use data::LoadTimes;
use std::time::Duration;

/// Share of waiting above which it is told of.
const WORTH_TELLING: f64 = 0.05;
/// Time of batches over which the share is taken.
const STRETCH: Duration = Duration::from_secs(20);

/// What a run has to load with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Threads that load images.
    pub threads: usize,
    /// Threads that the machine runs at once.
    pub cores: usize,
    pub cache: Cache,
    /// Whether all training pictures stay in memory once they are decoded.
    pub all_stay: bool,
}

/// What batches wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Disk,
    Decoding,
    Rendering,
    Upload,
}

impl Limit {
    /// Whatever takes most of the time: of the device's on its way to it, or of the loader's threads.
    fn of(paced: &Paced, times: &LoadTimes) -> Self {
        if paced.uploading > paced.waited {
            return Self::Upload;
        }
        let stages = [(Self::Disk, times.disk), (Self::Decoding, times.decode), (Self::Rendering, times.render)];
        stages.into_iter().max_by_key(|(_, time)| *time).map_or(Self::Disk, |(limit, _)| limit)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Disk => "the disk limits",
            Self::Decoding => "decoding limits",
            Self::Rendering => "rendering limits",
            Self::Upload => "the upload limits",
        }
    }

    /// What helps, best first.
    fn advice(self, means: &Means) -> String {
        let Means { threads, cores, cache, all_stay } = *means;
        if self == Self::Upload {
            return "a smaller --img sends fewer bytes; yolov9 bench data times the copy".to_owned();
        }
        let more_threads = (threads < cores).then(|| format!("--workers {cores} loads on all cores"));
        let cached = match (self, cache) {
            (Self::Rendering, _) => None,
            _ if all_stay => Some("pictures stay in memory once they are decoded, later epochs wait less"),
            (Self::Decoding, Cache::Disk) => Some("--cache disk keeps what is decoded, later epochs wait less"),
            (Self::Decoding, Cache::Ram) => Some("--cache disk decodes each image once, for not all fit into memory"),
            (Self::Decoding, _) => Some("--cache ram decodes each image once, or --cache disk where memory is short"),
            (_, Cache::Ram) => Some("a faster disk, or more memory for --cache ram"),
            _ => Some("--cache ram reads each image once, where memory is there for them"),
        };
        let advice: Vec<String> = cached.map(str::to_owned).into_iter().chain(more_threads).collect();
        match advice.is_empty() {
            true => "all cores load already; a --hyp with less mixup and copy_paste renders less".to_owned(),
            false => advice.join("; "),
        }
    }
}

/// Watches the waiting of a run.
#[derive(Debug)]
pub(super) struct DataWatch {
    means: Means,
    /// The epoch's time that has been looked at.
    seen: Paced,
    /// Time that has not been judged, also of earlier epochs.
    stretch: Paced,
    /// Where the loader's time had gone when it began.
    before: LoadTimes,
    /// Each is told of once.
    told: Vec<Limit>,
}

impl DataWatch {
    pub fn new(means: Means, before: LoadTimes) -> Self {
        Self { means, seen: Paced::default(), stretch: Paced::default(), before, told: Vec::new() }
    }

    /// To be called before the first batch of an epoch.
    pub fn begin_epoch(&mut self) {
        self.seen = Paced::default();
    }

    /// To be called after every batch. `times` says where the time of the loader's threads went so far.
    pub fn step(&mut self, paced: &Paced, times: impl FnOnce() -> LoadTimes, observer: &mut dyn Observer) {
        self.stretch = self.stretch.and(&paced.since(&self.seen));
        self.seen = *paced;
        if self.stretch.elapsed < STRETCH {
            return;
        }
        let stretch = std::mem::take(&mut self.stretch);
        let now = times();
        let spent = now.since(&std::mem::replace(&mut self.before, now));
        if stretch.data_wait() <= WORTH_TELLING {
            return;
        }
        let limit = Limit::of(&stretch, &spent);
        if !self.told.contains(&limit) {
            self.told.push(limit);
            observer.info(&line(limit, &stretch, &spent, &self.means));
        }
    }
}

fn line(limit: Limit, stretch: &Paced, spent: &LoadTimes, means: &Means) -> String {
    let seconds = stretch.elapsed.as_secs_f64();
    let of_time = |part: Duration| 100.0 * part.as_secs_f64() / seconds.max(1e-9);
    let all = (spent.disk + spent.decode + spent.render).as_secs_f64().max(1e-9);
    let of_loading = |part: Duration| 100.0 * part.as_secs_f64() / all;
    format!(
        "waiting for data took {:.0} % of the last {seconds:.0} s (loader {:.0} %, upload {:.0} %), {}; loading is {:.0} % \
         disk, {:.0} % decoding, {:.0} % rendering; what helps: {}",
        100.0 * stretch.data_wait(),
        of_time(stretch.waited),
        of_time(stretch.uploading),
        limit.name(),
        of_loading(spent.disk),
        of_loading(spent.decode),
        of_loading(spent.render),
        limit.advice(means)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Lines(Vec<String>);

    impl Observer for Lines {
        fn info(&mut self, line: &str) {
            self.0.push(line.to_owned());
        }
        fn warn(&mut self, _: &str) {}
        fn progress(&mut self, _: &crate::Progress) {}
    }

    const MEANS: Means = Means { threads: 8, cores: 16, cache: Cache::None, all_stay: false };

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn times(disk: u64, decode: u64, render: u64) -> LoadTimes {
        LoadTimes { disk: ms(disk), decode: ms(decode), render: ms(render) }
    }

    fn paced(elapsed: u64, waited: u64, uploading: u64) -> Paced {
        Paced { elapsed: ms(elapsed), waited: ms(waited), uploading: ms(uploading), images: 64, batches: 1 }
    }

    #[test]
    fn a_run_that_waits_says_for_what_and_what_helps() {
        let mut lines = Lines::default();
        let mut watch = DataWatch::new(MEANS, times(5_000, 0, 0));
        // What the loader did before the run is not the run's.
        watch.step(&paced(20_000, 4_000, 600), || times(7_000, 14_000, 4_000), &mut lines);
        assert_eq!(
            lines.0,
            [
                "waiting for data took 23 % of the last 20 s (loader 20 %, upload 3 %), decoding limits; loading is 10 % disk, \
              70 % decoding, 20 % rendering; what helps: --cache ram decodes each image once, or --cache disk where memory \
              is short; --workers 16 loads on all cores"
            ]
        );
    }

    #[test]
    fn up_to_five_percent_of_waiting_is_nothing_to_tell() {
        let mut lines = Lines::default();
        let mut watch = DataWatch::new(MEANS, LoadTimes::default());
        watch.step(&paced(20_000, 900, 100), || times(1, 2, 3), &mut lines);
        assert_eq!(lines.0.len(), 0, "{:?}", lines.0);
        // The next stretch begins anew.
        watch.step(&paced(40_000, 1_900, 150), || times(1, 2, 30), &mut lines);
        assert_eq!(lines.0.len(), 1);
        assert!(
            lines.0[0].contains("took 5 % of the last 20 s") && lines.0[0].contains("rendering limits"),
            "{lines:?}"
        );
    }

    #[test]
    fn short_epochs_are_judged_together_and_each_limit_is_told_of_once() {
        let mut lines = Lines::default();
        let mut watch = DataWatch::new(MEANS, LoadTimes::default());
        let mut decoded = 0;
        for epoch in 0..10 {
            watch.begin_epoch();
            watch.step(&paced(2_500, 1_000, 0), || panic!("no stretch ends here"), &mut lines);
            decoded += 1_000;
            watch.step(&paced(5_000, 2_000, 0), || times(0, decoded, 0), &mut lines);
            assert_eq!(lines.0.len(), usize::from(epoch >= 3), "epoch {epoch}: {lines:?}");
        }
        watch.begin_epoch();
        watch.step(&paced(30_000, 10, 9_000), || times(0, decoded, 0), &mut lines);
        assert_eq!(lines.0.len(), 2);
        assert!(lines.0[1].contains("the upload limits") && lines.0[1].contains("--img"), "{lines:?}");
    }

    #[test]
    fn advice_names_no_flag_that_is_given_already() {
        let of = |limit: Limit, means: Means| limit.advice(&means);
        let busy = Means { threads: 16, ..MEANS };
        assert!(of(Limit::Disk, MEANS).contains("--cache ram") && of(Limit::Disk, MEANS).contains("--workers 16"));
        assert!(!of(Limit::Disk, busy).contains("--workers"));
        assert!(of(Limit::Decoding, Means { cache: Cache::Ram, ..busy }).starts_with("--cache disk"));
        assert!(!of(Limit::Decoding, Means { cache: Cache::Ram, all_stay: true, ..busy }).contains("--cache"));
        assert!(of(Limit::Rendering, MEANS).starts_with("--workers 16"));
        assert!(of(Limit::Rendering, busy).contains("--hyp"));
    }
}

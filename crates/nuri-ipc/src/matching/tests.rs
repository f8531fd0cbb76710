//! Against a model that scans plain lists.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Post(Selector),
    Arrive(u32, u64),
    Cancel(usize),
    Probe(Selector),
    Desert(u32),
}

#[derive(Default)]
struct Model {
    receives: Vec<(Selector, u32)>,
    messages: Vec<(u32, u64, u32)>,
}

impl Model {
    fn message(&self, selector: Selector) -> Option<usize> {
        self.messages.iter().position(|(source, tag, _)| selector.accepts(*source, *tag))
    }
    fn receive(&self, source: u32, tag: u64) -> Option<usize> {
        self.receives.iter().position(|(selector, _)| selector.accepts(source, tag))
    }
}

fn selector() -> impl Strategy<Value = Selector> {
    (0..4u32, 0..4u64, 0..5).prop_map(|(source, tag, form)| {
        let exact = Selector::exact(source, tag);
        match form {
            0 => exact.any_source(),
            1 => exact.any_tag(),
            2 => Selector::ANY,
            3 => exact.masked(2),
            _ => exact,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => selector().prop_map(Step::Post),
        4 => (0..4u32, 0..4u64).prop_map(|(s, t)| Step::Arrive(s, t)),
        1 => (0..40usize).prop_map(Step::Cancel),
        1 => selector().prop_map(Step::Probe),
        1 => (0..40u32).prop_map(Step::Desert),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    #[test]
    fn as_a_list_scan(steps in prop::collection::vec(step(), 0..200)) {
        let mut real = Matching::<u32, u32>::new();
        let mut model = Model::default();
        let mut keys = Vec::new();
        for (id, step) in (0u32..).zip(steps) {
            match step {
                Step::Post(selector) => match real.post(selector, id) {
                    Posted::Found(message) => {
                        let at = model.message(selector).expect("the model has none");
                        prop_assert_eq!(model.messages.remove(at).2, message);
                    }
                    Posted::Waits(key) => {
                        prop_assert_eq!(model.message(selector), None);
                        model.receives.push((selector, id));
                        keys.push((key, id));
                    }
                },
                Step::Arrive(source, tag) => {
                    let at = model.receive(source, tag);
                    let expected = at.map(|at| model.receives.remove(at).1);
                    let taken = real.take(source, tag);
                    prop_assert_eq!(taken, expected);
                    if taken.is_none() {
                        real.keep(source, tag, id);
                        model.messages.push((source, tag, id));
                    }
                }
                Step::Cancel(which) => if let Some((key, id)) = keys.get(which).copied() {
                    let at = model.receives.iter().position(|(_, r)| *r == id);
                    let expected = at.map(|at| model.receives.remove(at).1);
                    prop_assert_eq!(real.cancel(key), expected);
                },
                Step::Probe(selector) => {
                    let expected = model.message(selector).map(|at| model.messages[at]);
                    prop_assert_eq!(real.probe(selector), expected);
                }
                Step::Desert(source) => {
                    let lost = |(s, _): &(Selector, u32)| s.source() == Some(source);
                    let expected: Vec<u32> =
                        model.receives.iter().filter(|r| lost(r)).map(|(_, r)| *r).collect();
                    model.receives.retain(|r| !lost(r));
                    prop_assert_eq!(real.desert(source), expected);
                }
            }
        }
    }
}

#[test]
fn an_older_wildcard_goes_first() {
    let mut queue = Matching::<&str, u32>::new();
    queue.post(Selector::exact(5, 5), "other");
    queue.post(Selector::ANY.masked(0), "wild");
    queue.post(Selector::exact(1, 2), "exact");
    assert_eq!(queue.take(1, 2), Some("wild"));
    assert_eq!(queue.take(1, 2), Some("exact"));
    assert_eq!(queue.take(1, 2), None);
}

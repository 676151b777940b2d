use peakledger_input::Source;
use peakledger_plan::{config::Architecture, options::Options, plan};
fn main() {
    let cfg = r#"{"model_type":"llama","vocab_size":128256,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":131072}"#;
    let s = Source::from_text("c", cfg);
    let mut best = u128::MAX;
    for _ in 0..300 {
        let t = std::time::Instant::now();
        let a = Architecture::read(&s).unwrap();
        let p = plan(a, Options::default()).unwrap();
        std::hint::black_box(&p);
        best = best.min(t.elapsed().as_nanos());
    }
    println!("{} us", best / 1000); let a = Architecture::read(&s).unwrap(); let p = plan(a, Options::default()).unwrap(); println!("{:?}", p.size());
}

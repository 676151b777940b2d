#!/bin/bash
# DeepSeek-V3 on 256 GPUs: 8 stages of 32 expert parallel ranks

GPUS_PER_NODE=8
NNODES=32
PP=8
EP=32

MODEL_ARGS=(
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --seq-length 4096
    --max-position-embeddings 163840
    --position-embedding-type rope
    --rope-type yarn
    --rotary-scaling-factor 40
    --swiglu
    --normalization RMSNorm
    --qk-layernorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --vocab-size 129280
    --attention-dropout 0.0
    --hidden-dropout 0.0
)

LATENT_ARGS=(
    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
)

MOE_ARGS=(
    --num-experts 256
    --moe-layer-freq "([0]*3+[1]*58)"
    --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8
    --moe-router-num-groups 8
    --moe-router-group-topk 4
    --moe-router-score-function sigmoid
    --moe-router-enable-expert-bias
    --moe-router-topk-scaling-factor 2.5
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1024
    --train-iters 10000
    --lr 2.2e-4
    --clip-grad 1.0
    --bf16
    --recompute-granularity full
    --recompute-method block
    --recompute-num-layers 6
    --cross-entropy-loss-fusion
    --cross-entropy-fusion-impl te
)

PARALLEL_ARGS=(
    --pipeline-model-parallel-size ${PP}
    --decoder-last-pipeline-num-layers 5
    --expert-model-parallel-size ${EP}
    --use-distributed-optimizer
)

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES \
    pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${LATENT_ARGS[@]}" \
    "${MOE_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    --mock-data \
    --tokenizer-type NullTokenizer

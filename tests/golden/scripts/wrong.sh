#!/usr/bin/env bash
export ASCEND_RT_VISIBLE_DEVICES=0,1,2,2
export VLLM_ATTENTION_BACKEND=FLASH_ATTN
export HCCL_CONNECT_TIMEOUT=soon
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:yes
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gropo \
    data.train_batch_size=100 \
    data.max_respone_length=1024 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=48 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.rollout.name=vlm \
    actor_rollout_ref.rollout.gpu_memory_utilization=1.4 \
    trainer.n_gpus_per_node=8 \
    trainer.device=npu \
    trainer.total_epochs=three

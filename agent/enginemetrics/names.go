package enginemetrics

// metric is what one series means here.
type metric uint8

const (
	mNone metric = iota
	mRunning
	mWaiting
	mKVUsage
	mKVUsageOld
	mSleep
	mCacheConfig
	mLoRA
	mPageSize
	mNumPages
	mMaxTokens
	mPrefixQueries
	mPrefixHits
	mExternalHits
	mPrompt
	mPromptCached
	mGeneration
	mPreemptions
	mTTFTSum
	mTTFTCount
	mInterSum
	mInterCount
	mPrefillSum
	mPrefillCount
	mComputedSum
	mComputedCount
	mRequestPromptSum
	mRequestPromptCount
)

// vllmMetric knows the names after "vllm:", new and old.
func vllmMetric(name []byte) metric {
	switch string(name) {
	case "num_requests_running":
		return mRunning
	case "num_requests_waiting":
		return mWaiting
	case "kv_cache_usage_perc":
		return mKVUsage
	case "gpu_cache_usage_perc": // until 0.11
		return mKVUsageOld
	case "engine_sleep_state":
		return mSleep
	case "cache_config_info":
		return mCacheConfig
	case "lora_requests_info":
		return mLoRA
	case "prefix_cache_queries_total", "gpu_prefix_cache_queries_total": // the latter until 0.11
		return mPrefixQueries
	case "prefix_cache_hits_total", "gpu_prefix_cache_hits_total":
		return mPrefixHits
	case "external_prefix_cache_hits_total":
		return mExternalHits
	case "prompt_tokens_total":
		return mPrompt
	case "prompt_tokens_cached_total":
		return mPromptCached
	case "generation_tokens_total":
		return mGeneration
	case "num_preemptions_total":
		return mPreemptions
	case "time_to_first_token_seconds_sum":
		return mTTFTSum
	case "time_to_first_token_seconds_count":
		return mTTFTCount
	case "inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum": // the latter until 0.12
		return mInterSum
	case "inter_token_latency_seconds_count", "time_per_output_token_seconds_count":
		return mInterCount
	case "request_prefill_time_seconds_sum":
		return mPrefillSum
	case "request_prefill_time_seconds_count":
		return mPrefillCount
	case "request_prefill_kv_computed_tokens_sum":
		return mComputedSum
	case "request_prefill_kv_computed_tokens_count":
		return mComputedCount
	case "request_prompt_tokens_sum":
		return mRequestPromptSum
	case "request_prompt_tokens_count":
		return mRequestPromptCount
	}
	return mNone
}

// sglangMetric knows the names after "sglang:".
func sglangMetric(name []byte) metric {
	switch string(name) {
	case "num_running_reqs":
		return mRunning
	case "num_queue_reqs":
		return mWaiting
	case "token_usage":
		return mKVUsage
	case "page_size":
		return mPageSize
	case "num_pages":
		return mNumPages
	case "max_total_num_tokens":
		return mMaxTokens
	case "prompt_tokens_total":
		return mPrompt
	case "cached_tokens_total":
		return mPromptCached
	case "generation_tokens_total":
		return mGeneration
	case "time_to_first_token_seconds_sum":
		return mTTFTSum
	case "time_to_first_token_seconds_count":
		return mTTFTCount
	case "inter_token_latency_seconds_sum":
		return mInterSum
	case "inter_token_latency_seconds_count":
		return mInterCount
	}
	return mNone
}

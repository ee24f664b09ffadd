// Package sim plays a request trace against a model of a fleet, in virtual time, and says what became of the requests under
// each policy: ours, by the product's own code, and those of other routers, by their public rules.
//
// Ours is not copied: engine events go through agent/blockset and gossip/digest, ticks through gossip/wire and gossip/view, and
// requests through a picker.Stepped, which is the gateway's picker with the time given from outside. A gateway sees nothing
// but decoded ticks and other gateways' hints, StateDelay old, and the answers to its own requests. The other routers see more than they do in a
// cluster: an exact index of all caches that is as old, and each other's requests.
//
// Engines are models: one prefill at a time, or chunked prefill beside decodes as vLLM's scheduler does it; both on the block
// pool of the emulated engine, with the times of Llama-3.1-70B in FP8 on one H200. The chunked one tells of a block when the step
// that computes it is planned, as vLLM does with async scheduling: up to a step before the block is there. A trace's block is an engine's block here:
// blocks are larger than in a cluster, so that a run takes seconds.
//
// The world is as bad as Config says: packets are lost, pods and agents fail, speeds differ and are misjudged, clients come
// again, another sender makes noise. All of that is drawn by the seed, mostly from what it is for and the index of whom it
// befalls, so that every policy is dealt the same.
package sim

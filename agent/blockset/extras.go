package blockset

import (
	"fmt"
	"slices"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Extra keys carry no labels on the wire. Their order is fixed (vLLM
// v1/core/kv_cache_utils.py): LoRA name in every block, multimodal items, the salt in
// block 0 only, digests of prompt embeds.

// rootExtras are what holds for the whole request, read from an event that starts at
// block 0.
func (s *Set) rootExtras(ev *kvevent.Stored) []blockhash.Extra {
	var out []blockhash.Extra
	name := ev.LoRAName
	if name == "" && ev.LoRAID != 0 {
		if name = s.cfg.LoRANames[ev.LoRAID]; name == "" {
			name = fmt.Sprintf("#%d", ev.LoRAID)
		}
	}
	if name != "" {
		out = append(out, blockhash.Extra{Kind: blockhash.LoRA, Value: name})
	}
	salt := ev.CacheSalt
	if ev.ExtraKeys != nil {
		// The salt is the last string. Before v0.19.0 images are bare strings too; one in
		// block 0 is then taken for a salt, which costs a hit and never gives a wrong one.
		for _, k := range slices.Backward(withoutLoRA(ev, 0)) {
			if k.Kind == kvevent.ExtraText {
				salt = k.Text
				break
			}
		}
	}
	if salt != "" {
		out = append(out, blockhash.Extra{Kind: blockhash.CacheSalt, Value: salt})
	}
	return out
}

// blockExtras are what lies inside block i. Integers are look-ahead tokens and LoRA
// numbers: neither changes which prefix the block holds.
func blockExtras(ev *kvevent.Stored, i int) []blockhash.Extra {
	keys := withoutLoRA(ev, i)
	first := i == 0 && !ev.HasParent
	saltAt := -1
	if first {
		for j, k := range keys {
			if k.Kind == kvevent.ExtraText {
				saltAt = j
			}
		}
	}
	var out []blockhash.Extra
	for j, k := range keys {
		switch {
		case k.Kind == kvevent.ExtraItem:
			out = append(out, blockhash.Extra{Kind: blockhash.Multimodal, Value: k.Text, Offset: int32(k.Num)})
		case k.Kind == kvevent.ExtraBytes:
			out = append(out, blockhash.Extra{Kind: blockhash.PromptEmbeds, Value: k.Text})
		case k.Kind == kvevent.ExtraText && j != saltAt:
			out = append(out, blockhash.Extra{Kind: blockhash.Multimodal, Value: k.Text})
		}
	}
	return out
}

// withoutLoRA returns block i's keys without the leading LoRA name.
func withoutLoRA(ev *kvevent.Stored, i int) []kvevent.ExtraKey {
	keys := ev.ExtraKeys[i]
	if ev.LoRAName != "" && len(keys) > 0 && keys[0].Kind == kvevent.ExtraText && keys[0].Text == ev.LoRAName {
		return keys[1:]
	}
	return keys
}

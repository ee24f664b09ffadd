package picker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// Names of the policies.
const (
	PolicyPrefix     = "prefix"      // least cost: cached prefix, load, memory; holds
	PolicyLeastLoad  = "least-load"  // fewest requests; knows nothing of caches
	PolicyRoundRobin = "round-robin" // one after the other
)

// Policy says how endpoints are chosen. SetPolicy changes it while the picker runs.
type Policy struct {
	// Shares splits the traffic between policies by the hash of the session (Request.Session, else ID), in any unit: a
	// session stays with its policy as long as the shares stay.
	Shares map[string]float64 `json:"policy" help:"policies (prefix, least-load, round-robin) and their shares of the sessions"`
	// Hold lets requests wait for an endpoint that is ready. Only prefix holds.
	Hold bool `json:"holding" help:"bind a request when an endpoint can start it, not at arrival"`
	// Speculation counts the blocks of requests just bound as present.
	Speculation bool `json:"speculating" help:"count the blocks of requests just bound as present"`
}

// DefaultPolicy is prefix for all, with hold and speculation.
func DefaultPolicy() Policy {
	return Policy{Shares: map[string]float64{PolicyPrefix: 1}, Hold: true, Speculation: true}
}

func (p *Policy) validate() error {
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(p.Shares)) {
		share := p.Shares[name]
		value := fmt.Sprintf("%s=%v", name, share)
		if !slices.Contains(policyNames, name) {
			return &fault{"policy", value, "names no policy", "use " + strings.Join(policyNames, ", ")}
		}
		if !(share >= 0) || share > 1e9 {
			return &fault{"policy", value, "is no share", "give 0 or more"}
		}
		sum += share
	}
	if sum <= 0 {
		return &fault{"policy", fmt.Sprint(p.Shares), "gives nobody a share", "give one policy a share, e.g. prefix=1"}
	}
	return nil
}

var policyNames = []string{PolicyPrefix, PolicyLeastLoad, PolicyRoundRobin} // in the order of the shares

// shares is a Policy made for looking up.
type shares struct {
	Policy
	upTo [3]float64 // cumulative, of policyNames, in [0,1]
}

func newShares(p Policy) *shares {
	s := &shares{Policy: p}
	s.Shares = maps.Clone(p.Shares)
	sum, total := 0.0, 0.0
	for _, v := range p.Shares {
		total += v
	}
	for i, name := range policyNames {
		sum += p.Shares[name]
		s.upTo[i] = sum / total
	}
	return s
}

// ReadsPrompts reports whether a policy with a share looks at what a request's prompt is.
func (p *Picker) ReadsPrompts() bool { return p.policy.Load().Shares[PolicyPrefix] > 0 }

// of returns the policy of a session.
func (s *shares) of(session string) string {
	at := float64(xxh3.HashString(session)>>11) / (1 << 53)
	for i, name := range policyNames {
		if at < s.upTo[i] {
			return name
		}
	}
	return PolicyPrefix
}

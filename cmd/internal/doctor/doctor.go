// Package doctor examines a fleet that does not work as it should: it asks the
// gateways, agents, engines and gossip nodes that it is given what they know,
// compares their answers, and says of each fault what it is and what to do. It
// changes nothing and becomes no member of the mesh.
//
//	report, err := doctor.Run(ctx, cfg, version)
//	report.Write(os.Stdout)
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
)

// Config says whom to ask. The settings that agents and gateways have too are
// named alike, so that their environment serves the doctor in their pods.
type Config struct {
	Gateway []string `json:"gateway" help:"admin URL of each gateway to ask, e.g. http://127.0.0.1:9090"`
	Agent   []string `json:"agent" help:"admin URL of each agent to ask, e.g. http://127.0.0.1:9464"`
	Engine  []string `json:"engine" help:"base URL of each engine to ask, e.g. http://127.0.0.1:8000"`
	Join    []string `json:"join" help:"gossip nodes to probe, host or host:port; a name stands for all its addresses"`
	Gossip  struct {
		Join    []string `json:"join" help:"the same as --join, by the agents' name for it"`
		Label   string   `json:"label" help:"the fleet's gossip label"`
		KeyFile string   `json:"key-file" help:"the fleet's gossip keys; needed to probe an encrypted mesh"`
	} `json:"gossip"`
	SeedFile string        `json:"seed-file" help:"file with the pool's seed of block hashes, to compare with what runs; empty: compare what runs with each other"`
	Pool     string        `json:"pool" help:"compare seeds in this pool only; empty: in all"`
	Timeout  time.Duration `json:"timeout" help:"limit on each question"`
	JSON     bool          `json:"json" help:"print JSON"`
}

// Default returns a configuration that asks what runs in the same pod.
func Default() Config { return Config{Timeout: 5 * time.Second} }

// Validate joins all faults.
func (c Config) Validate() error {
	var faults []error
	for _, l := range []struct {
		name string
		urls []string
	}{{"gateway", c.Gateway}, {"agent", c.Agent}, {"engine", c.Engine}} {
		for _, s := range l.urls {
			if u, err := url.Parse(s); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				faults = append(faults, fmt.Errorf("%s %q: give a base URL, e.g. http://127.0.0.1:9090", l.name, s))
			}
		}
	}
	if c.Timeout <= 0 {
		faults = append(faults, fmt.Errorf("timeout %v: give a duration above 0", c.Timeout))
	}
	return errors.Join(faults...)
}

// The admin listeners of a pod, asked when nobody is named.
const (
	localGateway = "http://127.0.0.1:9090"
	localAgent   = "http://127.0.0.1:9464"
)

// ErrNobody is returned by Run when nobody is named and nobody is found.
var ErrNobody = errors.New("nobody to ask: nothing answers on " + localGateway + " (gateway) or " + localAgent +
	" (agent); give --gateway, --agent, --engine or --join, in Kubernetes after `kubectl port-forward`")

// Status of a check.
type Status string

// What a check can come to.
const (
	OK         Status = "ok"
	Warning    Status = "warning"
	Failed     Status = "failed"
	NotChecked Status = "not checked"
)

// Check is one thing that was looked at.
type Check struct {
	Subject string `json:"subject"` // who, e.g. "gateway http://10.0.0.5:9090"
	Check   string `json:"check"`   // what
	Status  Status `json:"status"`
	Found   string `json:"found"`            // in words
	Remedy  string `json:"remedy,omitempty"` // what to do
}

// Report is the outcome.
type Report struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"` // of the doctor
	Checks  []Check   `json:"checks"`
}

// Count returns how many checks came to s.
func (r *Report) Count(s Status) (n int) {
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// subject gathers the checks of one subject, and what others are compared with.
type subject struct {
	name   string
	checks []Check

	version  string // of a gateway or agent
	seeds    []seed
	engines  []string // base URLs that an agent beside this process serves
	gossip   []string // addresses of gossip nodes that it told
	gateways []netip.AddrPort
}

// seed is the fingerprint that somebody hashes with.
type seed struct {
	who, pool   string
	fingerprint uint32
}

func (s *subject) add(check string, status Status, remedy, found string, args ...any) {
	s.checks = append(s.checks, Check{Subject: shown(s.name), Check: check, Status: status, Found: shown(fmt.Sprintf(found, args...)), Remedy: shown(remedy)})
}

// maxShown bounds a text of a check: most of it may be another's words.
const maxShown = 1 << 10

var passwords = regexp.MustCompile(`://[^/\s@]+@`)

// shown is a text for the report: in one line, not too long, and without the
// passwords of URLs.
func shown(s string) string {
	s = passwords.ReplaceAllString(s, "://***@")
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

func (s *subject) ok(check, found string, args ...any) { s.add(check, OK, "", found, args...) }

func (s *subject) skip(check, found string, args ...any) {
	s.add(check, NotChecked, "", found, args...)
}

func (s *subject) warn(check, remedy, found string, args ...any) {
	s.add(check, Warning, remedy, found, args...)
}

func (s *subject) fail(check, remedy, found string, args ...any) {
	s.add(check, Failed, remedy, found, args...)
}

// exam is one run.
type exam struct {
	cfg     Config
	version string
	keys    [][]byte
	keyErr  error
	seed    uint32
	hasSeed bool
}

// Run asks everybody. The error is ErrNobody.
func Run(ctx context.Context, cfg Config, version string) (Report, error) {
	x := &exam{cfg: cfg, version: version}
	out := Report{Time: time.Now(), Version: version}
	join := append(slices.Clone(cfg.Join), cfg.Gossip.Join...)
	if len(cfg.Gateway)+len(cfg.Agent)+len(cfg.Engine)+len(cfg.Join) == 0 {
		if x.answers(ctx, localGateway, partGateway) {
			cfg.Gateway = []string{localGateway}
		}
		if x.answers(ctx, localAgent, partAgent) {
			cfg.Agent = []string{localAgent}
		}
		if len(cfg.Gateway)+len(cfg.Agent)+len(join) == 0 {
			return out, ErrNobody
		}
	}
	all := []*subject{x.files()}
	all = append(all, x.each(ctx, "gateway", cfg.Gateway, x.gateway)...)
	all = append(all, x.each(ctx, "agent", cfg.Agent, x.agent)...)
	engines, named := slices.Clone(cfg.Engine), len(join) > 0
	for _, s := range all {
		for _, e := range s.engines {
			if !slices.Contains(engines, e) {
				engines = append(engines, e)
			}
		}
		if !named {
			join = append(join, s.gossip...)
		}
	}
	all = append(all, x.each(ctx, "engine", engines, x.engine)...)
	all = append(all, x.mesh(ctx, join)...)
	all = append(all, x.compare(all))
	for _, s := range all {
		out.Checks = append(out.Checks, s.checks...)
	}
	return out, nil
}

// each examines several of a kind at the same time.
func (x *exam) each(ctx context.Context, kind string, urls []string, f func(ctx context.Context, s *subject, url string)) []*subject {
	var wg sync.WaitGroup
	var out []*subject
	for _, u := range urls {
		s := &subject{name: kind + " " + u}
		out = append(out, s)
		wg.Go(func() { f(ctx, s, strings.TrimRight(u, "/")) })
	}
	wg.Wait()
	return out
}

// files reads the keys and the seed.
func (x *exam) files() *subject {
	s := &subject{name: "this machine"}
	switch path := x.cfg.Gossip.KeyFile; {
	case path == "":
		s.skip("keys", "no --gossip-key-file given: only a mesh without encryption can be probed")
	default:
		if x.keys, x.keyErr = mesh.ReadKeys(path); x.keyErr != nil {
			s.fail("keys", "make a key with `openssl rand -base64 32`; in Kubernetes, look at the Secret and at the volume's mount", "%v", x.keyErr)
			break
		}
		s.ok("keys", "%s in %s", plural(len(x.keys), "key"), path)
	}
	if x.cfg.SeedFile == "" {
		s.skip("seed", "no --seed-file given; those who run are compared with each other")
		return s
	}
	h, err := readSeed(x.cfg.SeedFile)
	if err != nil {
		s.fail("seed", "write one number of 64 bits into it: (echo -n 0x; openssl rand -hex 8) > seed", "%v", err)
		return s
	}
	x.seed, x.hasSeed = h.Fingerprint(), true
	s.ok("seed", "fingerprint %08x", x.seed)
	return s
}

func readSeed(path string) (blockhash.Hasher, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return blockhash.Hasher{}, err
	}
	seed, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	if err != nil { // the content is a secret and not repeated
		return blockhash.Hasher{}, fmt.Errorf("%s does not hold one number of 64 bits, decimal or 0x", path)
	}
	return blockhash.NewHasher(seed), nil
}

// compare judges what only shows when answers are laid side by side.
func (x *exam) compare(all []*subject) *subject {
	s := &subject{name: "all together"}
	versions := map[string][]string{}
	byPool := map[string]map[uint32][]string{}
	for _, one := range all {
		if one.version != "" {
			versions[one.version] = append(versions[one.version], one.name)
		}
		for _, d := range one.seeds {
			if x.cfg.Pool != "" && d.pool != x.cfg.Pool {
				continue
			}
			if byPool[d.pool] == nil {
				byPool[d.pool] = map[uint32][]string{}
			}
			if who := byPool[d.pool][d.fingerprint]; !slices.Contains(who, d.who) {
				byPool[d.pool][d.fingerprint] = append(who, d.who)
			}
		}
	}
	switch {
	case len(versions) == 1:
		for v := range versions {
			s.ok("versions", "all that were asked are %s", v)
		}
	case len(versions) > 1:
		s.warn("versions", "fine during an update (gateways first, agents as their pods are replaced); else update the rest", "mixed: %s", groups(versions))
	}
	for _, pool := range sortedKeys(byPool) {
		x.compareSeeds(s, pool, byPool[pool])
	}
	return s
}

func (x *exam) compareSeeds(s *subject, pool string, by map[uint32][]string) {
	const remedy = "give all agents and gateways of a pool the same --seed-file and restart those that differ; until then their digests match nothing"
	text := map[string][]string{}
	other := 0
	for fingerprint, who := range by {
		text[fmt.Sprintf("%08x", fingerprint)] = who
		if x.hasSeed && fingerprint != x.seed {
			other += len(who)
		}
	}
	switch {
	case len(by) > 1:
		s.fail("seed", remedy, "pool %s hashes with several seeds, fingerprints %s", pool, groups(text))
	case other > 0:
		s.fail("seed", remedy, "pool %s hashes with another seed than --seed-file (%08x): %s", pool, x.seed, groups(text))
	case x.hasSeed:
		s.ok("seed", "pool %s hashes with the seed of --seed-file", pool)
	default:
		s.ok("seed", "pool %s hashes with one seed, fingerprint %s", pool, sortedKeys(text)[0])
	}
}

package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// subsetFilter restricts the choice to the addresses in a header, as a router before the picker may. "-" is an empty list.
const subsetFilter = `
name: envoy.filters.http.lua
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
  default_source_code:
    inline_string: |
      function envoy_on_request(handle)
        local header = handle:headers():get("x-test-subset")
        if header == nil then return end
        local list = {}
        for address in string.gmatch(header, "[^,]+") do
          if address ~= "-" then table.insert(list, address) end
        end
        handle:streamInfo():dynamicMetadata():set("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", list)
      end
`

func TestSubset(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{edit: func(b *bootstrap) { b.insertFilter(0, subsetFilter) }})
			addresses := engineAddresses(f.Fleet)
			text := words(1, 1000)
			mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, false))
			time.Sleep(300 * time.Millisecond)
			// Even the one with the prefix is not taken if it may not be.
			for _, allowed := range [][]string{{addresses[0]}, {addresses[1]}, {addresses[2]}, {"192.0.2.1:8000", addresses[1]}} {
				mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, false), "X-Test-Subset", strings.Join(allowed, ","))
				if r := f.last(t); r.Endpoint != allowed[len(allowed)-1] {
					t.Errorf("allowed %v, picked %s", allowed, r.Endpoint)
				}
			}
			for _, none := range []string{"192.0.2.1:8000", "-"} {
				a := mustPost(t, http.StatusServiceUnavailable, f.url+chatPath, chat(text, 4, false), "X-Test-Subset", none)
				isErrorBody(t, a)
			}
		})
	}
}

// isErrorBody checks that an answer is an error in OpenAI's shape.
func isErrorBody(t *testing.T, a answer) {
	t.Helper()
	var e struct {
		Error struct{ Message, Type string }
	}
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("status %d with %q: %v", a.status, a.body, err)
	}
}

func TestRefusals(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{engines: 1, gateway: []string{"--max-body-bytes", "2000000"}})
			tests := map[string]struct {
				body   string
				status int
			}{
				"no JSON":       {"{", 400},
				"unknown model": {`{"model":"other","messages":[{"role":"user","content":"x"}]}`, 404},
				"too large":     {chat(strings.Repeat("x", 3_000_000), 1, false), 413},
			}
			for name, tt := range tests {
				t.Run(name, func(t *testing.T) { isErrorBody(t, mustPost(t, tt.status, f.url+chatPath, tt.body)) })
			}
			// What the engine itself refuses comes through as it is.
			t.Run("by the engine", func(t *testing.T) {
				isErrorBody(t, mustPost(t, 400, f.url+chatPath, chat("x", 1_000_000, false)))
			})
			t.Run("models", func(t *testing.T) {
				if text, err := get(f.url + "/v1/models"); err != nil || !strings.Contains(text, `"tiny"`) {
					t.Errorf("%q, %v", text, err)
				}
			})
		})
	}
}

// Under load, what has been held long enough and still finds no room is answered 429 with the time to come back.
func TestOverload(t *testing.T) {
	f := newFleet(t, "full-duplex.yaml", fleetOptions{engines: 1, speedup: 1, gateway: []string{"--hold-max-bound", "1", "--hold-max-age", "1s"}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _, _ = post(ctx, f.url+"/v1/completions", tokens(1, 50_000, 1)) })
	f.reaches(t, 5*time.Second, 1, 0)
	a := mustPost(t, http.StatusTooManyRequests, f.url+"/v1/completions", tokens(2, 1000, 1))
	isErrorBody(t, a)
	if a.header.Get("Retry-After") == "" || a.header.Get("X-Llm-D-Request-Dropped-Reason") == "" {
		t.Errorf("headers %v", a.header)
	}
}

// A gateway without an endpoint says that it is not ready, and Envoy does not ask it.
func TestNoEndpoints(t *testing.T) {
	program(t, envoyVar)
	listen, p := pickerAddress(t, "full-duplex.yaml"), ports(t, 2)
	start(t, program(t, binVar), "gateway", logDir(t), "gateway", "--listen=", "--ext-proc-listen", listen.flag,
		"--admin-listen", local(p[0]), "--gossip-bind", local(p[1]), "--gossip-advertise", local(p[1]))
	pod := startPod(t, "pod")
	b := readBootstrap(t, "full-duplex.yaml")
	b.endpoints("grapevine", listen.envoy)
	b.endpoints("pods", pod.address())
	e := startEnvoy(t, b)
	eventually(t, 5*time.Second, "the gateway to listen", func() error { _, err := get("http://" + local(p[0]) + "/healthz"); return err })
	e.healthy(t, "grapevine", 0)
	a := mustPost(t, http.StatusServiceUnavailable, e.url+chatPath, chat("x", 1, false))
	if n := len(pod.requests()); n != 0 {
		t.Errorf("status %d, yet %d requests at the pod", a.status, n)
	}
}

// Of several gateways the one that picked is told what became of the request.
func TestSeveralGateways(t *testing.T) {
	var second listenAddress
	f := newFleet(t, "full-duplex.yaml", fleetOptions{edit: func(b *bootstrap) {
		second = pickerAddress(t, "full-duplex.yaml")
		first := at(b.cluster("grapevine"), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "socket_address", "port_value")
		b.endpoints("grapevine", local(first.(int)), second.envoy)
	}})
	f.GatewayArgs[slices.Index(f.GatewayArgs, "--ext-proc-listen")+1] = second.flag
	g, err := f.AddGateway()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.WaitReporting(t.Context(), g, len(f.Engines), 20*time.Second); err != nil {
		t.Fatal(err)
	}
	f.healthy(t, "grapevine", 2)
	const n = 40
	for i := range n {
		mustPost(t, http.StatusOK, f.url+chatPath, chat(words(i, 20), 4, true))
	}
	joined, unknown, picked := 0.0, 0.0, map[string]float64{}
	eventually(t, 5*time.Second, "all observations", func() error {
		joined, unknown = 0, 0
		for _, g := range f.Gateways {
			text, err := get(g.Admin + "/metrics")
			if err != nil {
				return err
			}
			joined += metric(text, `grapevine_extproc_observations_total{result="joined"}`)
			unknown += metric(text, `grapevine_extproc_observations_total{result="unknown"}`)
			picked[g.Name] = metric(text, `grapevine_extproc_picks_total{result="picked"}`)
		}
		if joined+unknown < n {
			return fmt.Errorf("%v of %d", joined+unknown, n)
		}
		return nil
	})
	t.Logf("picks %v, observations joined %v, unknown %v", picked, joined, unknown)
	if unknown > 0 {
		t.Errorf("%v of %d answers were shown to a gateway that did not pick", unknown, n)
	}
	for name, p := range picked {
		if p == 0 {
			t.Errorf("%s made no pick: %v", name, picked)
		}
	}
}

// metric reads one line of Prometheus text.
func metric(text, name string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			var v float64
			_, _ = fmt.Sscan(rest, &v)
			return v
		}
	}
	return 0
}

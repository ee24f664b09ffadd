package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/deploy/inject"
)

// injectConfig is the injector's options, and what to print.
type injectConfig struct {
	inject.Options
	File           []string `json:"file" short:"f" help:"files with pods or what makes pods, - for standard input"`
	NamespaceLabel string   `json:"namespace-label" help:"value of the namespace's label: agent, configure or disabled; empty: the label has no value, --level says; none: not labelled"`
	Patch          bool     `json:"patch" help:"print the JSON patch of each object instead of the object"`
	JSON           bool     `json:"json" help:"print JSON instead of YAML"`

	injected bool // something was
}

func newInjectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inject -f FILE [flags]",
		Short: "Show what the injector would make of pods, Deployments and the like, without a cluster",
		Long: "Shows what the injector would make of pods, without a cluster.\n" +
			"Reads Pods, and the pod templates of Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and\n" +
			"LeaderWorkerSets, does to them what the webhook would, and prints them, or with --patch the JSON patch.\n" +
			"Warnings go to standard error. Everything else is printed as it is.",
		Example: `  kubectl get deployment llama -n models -o yaml | grapevine inject -f -      # inject=agent: what would be added
  grapevine inject -f pod.yaml --level configure                              # inject=configure: the engine's KV events too
  grapevine inject -f pod.yaml --patch --agent-image REGISTRY/agent:TAG --gossip-join grapevine-gossip.grapevine.svc`,
		DisableFlagParsing: true, // config reads flags, environment and file in one go
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := injectConfig{Options: inject.Default()}
			fs := pflag.NewFlagSet("inject", pflag.ContinueOnError)
			if run, code := config.Start(fs, about(cmd), args, &cfg, version, cmd.OutOrStdout(), cmd.ErrOrStderr()); !run {
				if code == 0 {
					return nil
				}
				return exitStatus(code)
			}
			cfg.Version = version
			return cfg.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// Validate implements what config asks for.
func (c injectConfig) Validate() error {
	var err error
	if len(c.File) == 0 {
		err = errors.New("file: none given; give -f FILE, or -f - for standard input")
	}
	return errors.Join(err, c.Options.Validate())
}

func (c *injectConfig) run(stdin io.Reader, stdout, stderr io.Writer) error {
	given := c.Image != ""
	if !given {
		c.Image = "REGISTRY/agent:" + c.Version // as the chart names it
	}
	var out []any
	for _, name := range c.File {
		in := stdin
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			defer f.Close()
			in = f
		}
		dec := utilyaml.NewYAMLOrJSONDecoder(in, 4096)
		for {
			var doc json.RawMessage
			if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			if len(doc) == 0 || string(doc) == "null" {
				continue
			}
			objects, err := c.objects(doc, stderr)
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			out = append(out, objects...)
		}
	}
	if len(out) == 0 {
		return fmt.Errorf("nothing to read in %s", strings.Join(c.File, ", "))
	}
	if c.injected && !given {
		fmt.Fprintf(stderr, "Before you apply this: --agent-image was not given, %s stands for yours\n", c.Image)
	}
	if c.injected && len(c.Join) == 0 {
		fmt.Fprintln(stderr, "Before you apply this: --gossip-join was not given, so the agents join nobody; give the gateways' headless Service, such as grapevine-gossip.grapevine.svc")
	}
	return c.print(stdout, out)
}

func (c injectConfig) print(w io.Writer, objects []any) error {
	for i, o := range objects {
		if c.JSON || c.Patch {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			if err := enc.Encode(o); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			continue
		}
		b, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		if i > 0 {
			b = append([]byte("---\n"), b...)
		}
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}

// template is a pod template in an object: where, and the labels that the
// controller gives its pods.
type template struct {
	path   []string
	labels map[string]string
	note   string
}

const labelWorkerIndex = "leaderworkerset.sigs.k8s.io/worker-index"

// templates are the pod templates of kinds, the pod itself for Pod.
func templates(kind string, object map[string]any) []template {
	switch kind {
	case "Pod":
		return []template{{}}
	case "PodTemplate":
		return []template{{path: []string{"template"}}}
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "ReplicationController":
		return []template{{path: []string{"spec", "template"}}}
	case "CronJob":
		return []template{{path: []string{"spec", "jobTemplate", "spec", "template"}}}
	case "LeaderWorkerSet":
		base := []string{"spec", "leaderWorkerTemplate"}
		leader, worker := append(slices.Clone(base), "leaderTemplate"), append(slices.Clone(base), "workerTemplate")
		if at(object, leader) == nil { // the worker's stands for both
			return []template{{path: worker, labels: map[string]string{labelWorkerIndex: "0"}, note: "leader's pods only: the webhook leaves workers alone"}}
		}
		return []template{{path: leader, labels: map[string]string{labelWorkerIndex: "0"}}, {path: worker, labels: map[string]string{labelWorkerIndex: "1"}}}
	}
	return nil
}

// at finds a part of an object, nil if it is not there.
func at(object any, path []string) any {
	for _, p := range path {
		m, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = m[p]
	}
	return object
}

// objects does one document, which may be a List.
func (c *injectConfig) objects(doc []byte, stderr io.Writer) ([]any, error) {
	var object map[string]any
	if err := unmarshal(doc, &object); err != nil {
		return nil, fmt.Errorf("decode object: %w", err)
	}
	kind, _ := object["kind"].(string)
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(kind, "List") {
		var out []any
		for _, item := range items {
			b, err := json.Marshal(item)
			if err != nil {
				return nil, fmt.Errorf("encode item: %w", err)
			}
			more, err := c.objects(b, stderr)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		return out, nil
	}
	name, _ := at(object, []string{"metadata", "name"}).(string)
	say := func(format string, args ...any) {
		fmt.Fprintf(stderr, "%s/%s: %s\n", strings.ToLower(kind), name, fmt.Sprintf(format, args...))
	}
	all := []inject.Op{}
	found := templates(kind, object)
	if found == nil {
		say("left as it is: no pod, and none of the kinds whose pod templates are known here (the webhook sees the pods themselves)")
	}
	for _, t := range found {
		part := at(object, t.path)
		if part == nil {
			continue
		}
		pod := new(corev1.Pod)
		b, err := json.Marshal(part)
		if err == nil {
			err = json.Unmarshal(b, pod)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: decode pod: %w", kind, name, err)
		}
		for k, v := range t.labels {
			if pod.Labels == nil {
				pod.Labels = make(map[string]string)
			}
			pod.Labels[k] = v
		}
		res := c.Options.Inject(pod, inject.Namespace{Labelled: c.NamespaceLabel != "none", Label: c.NamespaceLabel})
		c.injected = c.injected || res.Outcome == inject.InjectedAgent || res.Outcome == inject.InjectedConfigure
		where := ""
		if len(t.path) > 0 {
			where = "/" + strings.Join(t.path, "/")
		}
		say("%s%s", res.Outcome, notEmpty(" ("+t.note+")", t.note))
		for _, w := range res.Warnings {
			say("Warning: %s", w)
		}
		if at(part, []string{"metadata"}) == nil && len(res.Patch) > 0 {
			all = append(all, inject.Op{Op: "add", Path: where + "/metadata", Value: map[string]any{}})
		}
		for _, op := range res.Patch {
			op.Path = where + op.Path
			all = append(all, op)
		}
	}
	if c.Patch {
		return []any{all}, nil
	}
	return patched(doc, all)
}

func notEmpty(s, test string) string {
	if test == "" {
		return ""
	}
	return s
}

// patched applies the patch and returns the object.
func patched(doc []byte, ops []inject.Op) ([]any, error) {
	b, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	p, err := jsonpatch.DecodePatch(b)
	if err == nil {
		doc, err = p.Apply(doc)
	}
	if err != nil {
		return nil, fmt.Errorf("apply patch: %w", err)
	}
	var object any
	if err := unmarshal(doc, &object); err != nil {
		return nil, fmt.Errorf("decode object: %w", err)
	}
	return []any{object}, nil
}

// unmarshal keeps numbers as they are written.
func unmarshal(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return dec.Decode(into)
}

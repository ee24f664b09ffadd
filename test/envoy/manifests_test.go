package envoy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Each manifest for others' gateways says what holds there, and asks the picker at the port that it has.
func TestManifestsOfGateways(t *testing.T) {
	files, err := filepath.Glob("../../deploy/gateways/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, claim := range []string{"Gateway not there", "Body of requests", "Running answers", "Requests may be held", "Client's own choice", "List of pods to try", "A gateway that hangs"} {
				if !strings.Contains(string(text), "\n# "+claim+" ") {
					t.Errorf("it does not say: %s", claim)
				}
			}
			asks := 0
			for doc := range strings.SplitSeq(string(text), "\n---\n") {
				var o struct {
					Kind     string
					Metadata struct{ Name, Namespace string }
					Spec     struct {
						EndpointPickerRef struct {
							Name string
							Port struct{ Number int }
						}
						ExtProc []struct {
							BackendRefs []struct {
								Name string
								Port int
							}
						}
					}
				}
				if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
					t.Fatal(err)
				}
				if o.Kind == "" || o.Metadata.Name == "" || o.Metadata.Namespace == "" && o.Kind != "GatewayClass" {
					t.Errorf("an object without kind, name or namespace: %+v", o)
				}
				if p := o.Spec.EndpointPickerRef; p.Name == "grapevine-gateway" && p.Port.Number == 9002 {
					asks++
				}
				for _, e := range o.Spec.ExtProc {
					if len(e.BackendRefs) == 1 && e.BackendRefs[0].Name == "grapevine-gateway" && e.BackendRefs[0].Port == 9002 {
						asks++
					}
				}
			}
			if asks == 0 {
				t.Error("nothing asks grapevine-gateway:9002")
			}
		})
	}
}

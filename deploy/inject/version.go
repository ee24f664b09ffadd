package inject

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// version is an engine's release.
type version struct{ major, minor, patch int }

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch) }

func (v version) below(major, minor, patch int) bool {
	if v.major != major {
		return v.major < major
	}
	if v.minor != minor {
		return v.minor < minor
	}
	return v.patch < patch
}

var versionText = regexp.MustCompile(`^v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:$|[^0-9.])`)

func parseVersion(s string) (version, bool) {
	m := versionText.FindStringSubmatch(s)
	if m == nil {
		return version{}, false
	}
	var v version
	v.major, _ = strconv.Atoi(m[1])
	v.minor, _ = strconv.Atoi(m[2])
	v.patch, _ = strconv.Atoi(m[3]) // "" is 0
	return v, true
}

// Of these repositories the tag is the engine's release. Other images' tags are
// their makers' own (lmcache/vllm-openai, ghcr.io/llm-d/llm-d-cuda).
var (
	vllmImage   = regexp.MustCompile(`(^|/)(vllm/vllm-openai(-[a-z0-9]+)*|vllm-cpu-release-repo)$`)
	sglangImage = regexp.MustCompile(`(^|/)lmsysorg/sglang$`)
)

// splitImage takes an image reference apart.
func splitImage(image string) (repository, tag string) {
	repository, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		return repository[:i], repository[i+1:]
	}
	return repository, ""
}

func imageVersion(image string, kind kind) (version, bool) {
	repository, tag := splitImage(image)
	switch {
	case kind == vllm && vllmImage.MatchString(repository), kind == sglang && sglangImage.MatchString(repository):
		return parseVersion(tag)
	}
	return version{}, false
}

// plainModel matches models on Hugging Face whose layers are all of full attention
// (or MLA), as far as known for certain.
var plainModel = regexp.MustCompile(`(?i)^[\w.-]+/(` + strings.Join([]string{
	`(meta-)?llama-(2|3|3\.1|3\.3)-[\w.-]+`,
	`llama-3\.2-(1|3)b[\w.-]*`,
	`qwen(2|2\.5)-(\d|\w+-\d)[\w.-]*`,
	`qwen3-[\d.]+b[\w.-]*`,
	`mixtral-8x[\w.-]+`,
	`mistral-7b-(instruct-)?v0\.[23][\w.-]*`,
	`deepseek-(v3|v3-0324|v3-base|r1|r1-0528|r1-zero)`,
	`deepseek-r1-distill-(llama|qwen)-[\w.-]+`,
}, "|") + `)$`)

package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/providers"
	"github.com/spf13/cobra"
)

// A presetResult is a preset, as the verb providers shows it.
type presetResult struct {
	Name        string            `json:"name"`
	Constructor string            `json:"constructor"` // in package providers
	Example     string            `json:"example"`     // the limits below are those of the example
	Parameters  []parameterResult `json:"parameters"`
	Scopes      []scopeResult     `json:"scopes"`
	Sockets     []scopeResult     `json:"sockets,omitempty"` // limits over WebSocket
	Models      string            `json:"models,omitempty"`  // the scope that has limits of single models
	Hosts       []string          `json:"hosts"`
}

type parameterResult struct {
	Name     string `json:"name"`
	About    string `json:"about"`
	Required bool   `json:"required"`
	Default  string `json:"default,omitempty"`
	Example  string `json:"example"`
	Min      *int64 `json:"min,omitempty"` // of a number
	Max      *int64 `json:"max,omitempty"`
}

type scopeResult struct {
	Name  string   `json:"name"`
	Tiers []string `json:"tiers"` // empty if no limit is known: requests wait after refusals only
	Per   string   `json:"per"`   // whose requests count together: account, address or token, or connection over WebSocket
	Page  string   `json:"page"`
	Read  string   `json:"read"` // the day, as 2006-01-02
}

func (c *command) providers() *cobra.Command {
	return &cobra.Command{
		Use:        "providers [NAME...]",
		Short:      "List the APIs whose limits are known",
		SuggestFor: []string{"presets", "list", "apis"},
		Long: `List the presets, which are the APIs whose limits are known, or show the limits of
some presets: each scope with its tiers, the parameters, and the pages of the API's
documentation with the days on which they were read.

Exit codes: 64 there is no such preset.`,
		Example: `  throttle providers
  throttle providers github openai
  throttle providers --json`,
		RunE: func(_ *cobra.Command, args []string) error {
			presets := providers.Presets()
			if len(args) > 0 {
				presets = nil
			}
			for _, name := range args {
				p, err := config.FindPreset(name)
				if err != nil {
					return usagef("%w", err)
				}
				presets = append(presets, p)
			}
			results := make([]presetResult, len(presets))
			for i, p := range presets {
				results[i] = resultOf(p)
			}
			return c.print(map[string]any{"presets": results}, func() string {
				if len(args) == 0 {
					return listPresets(results)
				}
				var texts []string
				for _, r := range results {
					texts = append(texts, r.text())
				}
				return strings.Join(texts, "\n")
			})
		},
	}
}

// constructorOf returns the name of a preset's constructor.
func constructorOf(p providers.Preset) string {
	name, _, _ := strings.Cut(p.Constructor, "(")
	return name
}

func resultOf(p providers.Preset) presetResult {
	provider := p.Provider(p.Example())
	r := presetResult{Name: p.Name, Constructor: constructorOf(p), Example: config.PresetText(p, p.Example()), Models: p.Models, Hosts: provider.Hosts, Parameters: []parameterResult{}}
	if r.Hosts == nil {
		r.Hosts = []string{}
	}
	for _, param := range p.Parameters {
		result := parameterResult{Name: param.Name, About: param.About, Required: param.Required(), Default: param.Default, Example: param.Example}
		if !param.Text {
			most := int64(algorithms.MaxLimit)
			result.Min, result.Max = &param.Min, &most
		}
		r.Parameters = append(r.Parameters, result)
	}
	r.Scopes, r.Sockets = scopesOf(provider.Scopes), scopesOf(provider.Sockets)
	return r
}

func scopesOf(scopes []providers.Scope) (results []scopeResult) {
	for _, s := range scopes {
		results = append(results, scopeResult{s.Name, tierTexts(s.Policy), s.Per.String(), s.Page, s.Read})
	}
	return results
}

// tierTexts returns the tiers of a policy, but not the one that stands for no limit.
func tierTexts(p throttle.Policy) []string {
	texts := []string{}
	for _, t := range p.Tiers {
		if t.Unit != "nothing" {
			texts = append(texts, t.String())
		}
	}
	return texts
}

// width is how wide a line of text is at most.
const width = 80

// listPresets returns a line for each preset.
func listPresets(results []presetResult) string {
	rows := [][]string{{"PRESET", "PARAMETERS", "SCOPES"}}
	for _, r := range results {
		var params, scopes []string
		for _, p := range r.Parameters {
			if p.Required {
				params = append(params, p.Name)
			} else {
				params = append(params, "["+p.Name+"]")
			}
		}
		for _, s := range r.Scopes {
			scopes = append(scopes, s.Name)
		}
		rows = append(rows, []string{r.Name, strings.Join(params, ","), strings.Join(scopes, ", ")})
	}
	return fitted("", rows, 2, width) + "\nthrottle providers NAME shows the limits. [Parameters] have defaults.\n"
}

// text returns all about a preset.
func (r presetResult) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Example)
	writeScopes(&b, r.Scopes)
	if len(r.Sockets) > 0 {
		b.WriteString("\nOver WebSocket\n")
		writeScopes(&b, r.Sockets)
	}
	if len(r.Parameters) > 0 {
		b.WriteString("\nParameters\n")
	}
	for _, p := range r.Parameters {
		text := p.About + "; required"
		if !p.Required {
			text = p.About + "; default " + p.Default
		}
		wrap(&b, width, fmt.Sprintf("  %-16s  ", p.Name), text)
	}
	if len(r.Hosts) > 0 {
		b.WriteString("\nHosts\n")
		wrap(&b, width, "  ", strings.Join(r.Hosts, ", "))
	}
	pages := make(map[string][]string)
	for _, s := range slices.Concat(r.Scopes, r.Sockets) {
		if !slices.Contains(pages[s.Read], s.Page) {
			pages[s.Read] = append(pages[s.Read], s.Page)
		}
	}
	for _, day := range slices.Sorted(maps.Keys(pages)) {
		fmt.Fprintf(&b, "\nRead on %s\n", day)
		for _, page := range pages[day] {
			fmt.Fprintf(&b, "  %s\n", page)
		}
	}
	return b.String()
}

// writeScopes writes a line for each scope.
func writeScopes(b *strings.Builder, scopes []scopeResult) {
	longest := 0
	for _, s := range scopes {
		longest = max(longest, len(s.Name))
	}
	longest = min(longest, 24)
	for _, s := range scopes {
		text := strings.Join(s.Tiers, " + ")
		if text == "" {
			text = "no known limit: requests wait after refusals"
		}
		if s.Per != providers.PerAccount.String() {
			text += ", for each " + s.Per
		}
		wrap(b, width, fmt.Sprintf("  %-*s  ", longest, s.Name), text)
	}
}

// wrap writes a text after a head, in lines of a width. Further lines are indented as far as the head.
func wrap(b *strings.Builder, width int, head, text string) {
	indent := min(len(head), 26)
	margin := "\n" + strings.Repeat(" ", indent)
	if len(head) > indent {
		head += margin
	}
	lines := wrapped(strings.Join(strings.Fields(text), " "), width-indent)
	b.WriteString(head + strings.Join(lines, margin) + "\n")
}

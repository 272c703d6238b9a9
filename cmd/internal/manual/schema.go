package manual

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A schema is what a JSON Schema says of a kind of value.
type schema struct {
	Description string     `json:"description"`
	Default     any        `json:"default"`
	Type        string     `json:"type"`
	Enum        []string   `json:"enum"`
	Pattern     string     `json:"pattern"`
	Minimum     *int64     `json:"minimum"`
	Maximum     *int64     `json:"maximum"`
	Items       *schema    `json:"items"`
	AnyOf       []schema   `json:"anyOf"`
	Properties  properties `json:"properties"`
	Required    []string   `json:"required"`
}

// properties are the keys of a table, in their order.
type properties []property

type property struct {
	key string
	schema
}

// UnmarshalJSON reads an object, in order.
func (p *properties) UnmarshalJSON(text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		next := property{key: fmt.Sprint(key)}
		if err := dec.Decode(&next.schema); err != nil {
			return fmt.Errorf("key %v: %w", key, err)
		}
		*p = append(*p, next)
	}
	return nil
}

func readSchema(tree fs.FS, name string) (schema, error) {
	var s schema
	text, err := fs.ReadFile(tree, name)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// at returns what is said of a key.
func (s schema) at(key string) schema {
	for _, p := range s.Properties {
		if p.key == key {
			return p.schema
		}
	}
	return schema{}
}

// table returns the table that a value is, or that each of a list is; one without
// keys where there is none.
func (s schema) table() schema {
	if s.Items != nil {
		s = *s.Items
	}
	if n := len(s.AnyOf); n > 0 {
		s = s.AnyOf[n-1]
	}
	return s
}

// patterns are those of strings that have a name.
var patterns = map[string]string{
	decode.Addr.Schema.Pattern:                          "address",
	decode.Prefix.Schema.Pattern:                        "range",
	decode.Duration(0, time.Duration(0)).Schema.Pattern: "duration",
}

// kind returns the type and the range of a value in words.
func (s schema) kind() string {
	switch {
	case s.Type == "array":
		return "list of " + plural(s.Items.kind())
	case len(s.Enum) > 0:
		return choices(s.Enum)
	case len(s.AnyOf) > 0:
		var all []string
		for _, a := range s.AnyOf {
			all = append(all, a.kind())
		}
		return strings.Join(all, ", or ")
	case s.Type == "integer":
		return fmt.Sprintf("number, %d to %d", *s.Minimum, *s.Maximum)
	case s.Type == "boolean":
		return "true or false"
	case s.Type == "object":
		return "table"
	case patterns[s.Pattern] != "":
		return patterns[s.Pattern]
	}
	return "string"
}

func choices(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = `"` + w + `"`
	}
	return source.Either(quoted)
}

func plural(kind string) string {
	switch kind {
	case "address":
		return "addresses"
	case "range", "string", "table", "duration":
		return kind + "s"
	}
	return kind
}

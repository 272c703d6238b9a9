package decode

import (
	"encoding/json"
	"fmt"
)

// A Schema is what JSON Schema (draft 7, which editors know best) can say of a
// kind of value. The zero Schema lets everything through.
type Schema struct {
	*Heading
	Description string     `json:"description,omitempty"`
	Default     any        `json:"default,omitempty"` // what holds where the key is not written; nil: it cannot be written
	Type        string     `json:"type,omitempty"`
	Enum        []string   `json:"enum,omitempty"`
	Pattern     string     `json:"pattern,omitempty"`
	Minimum     *int64     `json:"minimum,omitempty"`
	Maximum     *int64     `json:"maximum,omitempty"`
	Items       *Schema    `json:"items,omitempty"`
	MinItems    int        `json:"minItems,omitempty"`
	UniqueItems bool       `json:"uniqueItems,omitempty"`
	AnyOf       []Schema   `json:"anyOf,omitempty"`
	Properties  Properties `json:"properties,omitempty"`
	Required    []string   `json:"required,omitempty"`
	Others      any        `json:"additionalProperties,omitempty"` // of the values of other keys, a *Schema; false: there are none
}

// A Heading is what the Schema of a whole file begins with.
type Heading struct {
	Dialect string `json:"$schema"`
	Title   string `json:"title"`
}

// Headed returns the Heading of a Schema with this title.
func Headed(title string) *Heading { return &Heading{"http://json-schema.org/draft-07/schema#", title} }

// Properties are the keys of a table, in the order of the documentation.
type Properties []Property

// A Property is one key of a table.
type Property struct {
	Key    string
	Schema Schema
}

// MarshalJSON writes an object, in order.
func (p Properties) MarshalJSON() ([]byte, error) {
	object := []byte("{")
	for i, prop := range p {
		value, err := json.Marshal(prop.Schema)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			object = append(object, ',')
		}
		object = fmt.Appendf(object, "%q:%s", prop.Key, value)
	}
	return append(object, '}'), nil
}

func listOf(s Schema) Schema { return Schema{Type: "array", Items: &s} }

package manual

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

const aboutSettings = `# NAME
svcproxy.toml - settings of svcproxy

# DESCRIPTION
/etc/svcproxy/svcproxy.toml is optional, and so is every key. A key above the first
table is a flag too, with - for \_, and the flag wins. The file is watched: what can
change while svcproxy runs does, and status names what waits for a restart. Keys are
matched exactly, and an unknown one is a fault, which **svcproxy check** names. **svcproxy
config** prints all settings as they are.

A duration is a string such as "1.5s", "200ms", "3m" or "1h30m". Addresses are literal;
no names are looked up. A range is an address and a length, such as "10.96.0.0/16".
`

const aboutService = `# NAME
svcproxy-service - service files of svcproxy

# DESCRIPTION
Every \*.toml and \*.json in /etc/svcproxy, but svcproxy.toml, is a service file. Both
languages have the same keys with the same meaning: a table in double brackets,
\[\[services\]\] in TOML, is {"services": \[...\]} in JSON. Keys are matched exactly, and
an unknown one is a fault, which **svcproxy check** names. A file is accepted or refused
whole, and one that is refused stays in use as it was last accepted.

A duration is a string such as "1.5s", "200ms", "3m" or "1h30m". Addresses are literal;
no names are looked up. A range is an address and a length, such as "10.96.0.0/16".

# EXAMPLE

` + "```" + `
[[services]]
name      = "web"
vips      = ["10.96.0.10", "fd00:96::10"]
ports     = [{ name = "http", port = 80, target_port = 8080 }]
endpoints = ["192.168.10.11", "192.168.10.12", "fd00:10::11"]
` + "```" + `
`

const seeSettings = "\n# FILES\n/etc/svcproxy/svcproxy.toml\n\n# SEE ALSO\nsvcproxy(8), svcproxy-service(5)\n"
const seeService = "\n# FILES\n/etc/svcproxy/\\*.toml, /etc/svcproxy/\\*.json\n\n# SEE ALSO\nsvcproxy(8), svcproxy.toml(5)\n"

// settingsPage is the page of svcproxy.toml: the keys at its top, and then its tables.
func settingsPage(s schema) page {
	var b strings.Builder
	b.WriteString(aboutSettings + "\n# KEYS\n")
	tables := keys(&b, s)
	for _, t := range tables {
		table(&b, header(t.key, t.schema), t.key, t.schema)
	}
	return page{"svcproxy.toml", 5, "File Formats Manual", b.String() + seeSettings}
}

// servicePage is the page of service files.
func servicePage(s schema) page {
	var b strings.Builder
	b.WriteString(aboutService)
	table(&b, "[[services]]", "services", s.at("services"))
	table(&b, "[defaults]", "defaults", s.at("defaults"))
	return page{"svcproxy-service", 5, "File Formats Manual", b.String() + seeService}
}

// table writes what is said of a table, its keys, and the tables in it.
func table(b *strings.Builder, begins, path string, s schema) {
	fmt.Fprintf(b, "\n# %s\n", escape(begins))
	if s.Description != "" {
		fmt.Fprintf(b, "%s\n\n", escape(s.Description))
	}
	for _, t := range keys(b, s.table()) {
		below := path + "." + t.key
		table(b, header(below, t.schema), below, t.schema)
	}
}

// header returns what begins a table, or one of a list of tables, in TOML.
func header(path string, s schema) string {
	if s.Type == "array" {
		return "[[" + path + "]]"
	}
	return "[" + path + "]"
}

// keys writes the keys of a table, and returns those that are tables.
func keys(b *strings.Builder, s schema) (tables []property) {
	for _, p := range s.Properties {
		if len(p.table().Properties) > 0 {
			tables = append(tables, p)
			continue
		}
		kind := p.kind()
		switch {
		case slices.Contains(s.Required, p.key):
			kind += "; required"
		case p.Default != nil:
			kind += "; default " + literal(p.Default)
		}
		text := strings.TrimSpace(strings.TrimPrefix(p.Description, "Required."))
		fmt.Fprintf(b, "**%s** (%s)\n: %s\n\n", escape(p.key), escape(kind), escape(text))
	}
	return tables
}

// literal returns a value as both languages write it.
func literal(v any) string {
	list, isList := v.([]any)
	if !isList {
		text, _ := json.Marshal(v) // it was read from JSON
		return string(text)
	}
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = literal(v)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

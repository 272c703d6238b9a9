package read

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// otherNames are keys by the names that other programs have for them.
var otherNames = map[string]map[string]string{
	"services": {
		"clusterIP": "vips", "clusterIPs": "vips", "cluster_ip": "vips", "ip": "vips", "ips": "vips", "address": "vips", "addresses": "vips", "virtual_ip": "vips",
		"port": "ports", "listen": "ports",
		"backends": "endpoints", "backend": "endpoints", "servers": "endpoints", "targets": "endpoints", "upstreams": "endpoints", "real_server": "endpoints",
		"endpoints_file": "endpoints_from", "endpointsFrom": "endpoints_from",
		"loadBalancerIP": "load_balancer_ips", "algorithm": "scheduler", "lb_algo": "scheduler",
		"comment": "description", "desc": "description", "annotations": "labels", "tags": "labels",
		"check": "health_check", "healthcheck": "health_check", "health_checks": "health_check", "probe": "health_check",
	},
	"endpoints": {"ip": "address", "host": "address", "hostname": "address", "addr": "address", "target_port": "port", "targetPort": "port", "priority": "tier"},
	"ports":     {"number": "port", "listen": "port", "backend_port": "target_port", "proto": "protocol"},
	"health_check": {
		"url": "path", "uri": "path", "status": "expect_status", "status_code": "expect_status", "body": "expect_body", "virtualhost": "host",
		"script": "command", "cmd": "command", "exec": "command", "sni": "server_name", "tls_verify": "verify", "tls_version": "min_tls", "bindto": "source",
		"period": "interval", "delay_loop": "interval", "inter": "interval", "every": "interval", "connect_timeout": "timeout",
		"retries": "fall", "retry": "fall", "unhealthy_threshold": "fall", "healthy_threshold": "rise",
	},
}

// writeOtherwise are keys that other programs have, and what says the same here, by table.
var writeOtherwise = map[string]map[string]string{
	"services":  {"disabled": "write enabled = false", "backup": "write tier = 1 at its endpoints", "slowstart": `write slow_start = "30s"`},
	"endpoints": {"disabled": "write enabled = false", "backup": "write tier = 1"},
	"ports":     {"end_port": aRange, "endPort": aRange, "port_end": aRange, "last_port": aRange},
}

const aRange = `write a range: port = "8000-8100"`

// keyHint says what was meant by a key that the table at path does not have: a
// key by another name, or one of a table above or below this one.
func keyHint(path source.Path, key string) (meant, hint string) {
	of := ""
	for _, s := range path {
		if s.Index < 0 {
			of = s.Key
		}
	}
	isService, isPort, isEndpoint, isCheck := hasKey(serviceFields, key), hasKey(portFields, key), hasKey(endpointFields, key), hasKey(checkFields, key)
	switch {
	case otherNames[of][key] != "":
		return otherNames[of][key], ""
	case writeOtherwise[of][key] != "":
		return "", writeOtherwise[of][key]
	case of == "" && key == "health_check":
		return "", "write it as [services.health_check] below a service, or as [defaults.health_check] for all of them"
	case of == defaultsKey && otherNames["services"][key] != "":
		return otherNames["services"][key], ""
	case of == defaultsKey && isCheck && !isService:
		return "", "it belongs to the health check: write it below [defaults.health_check]"
	case of == defaultsKey && isService:
		return "", "it has no default of a file: write it in each service"
	case of == "services" && isCheck && !isPort && !isEndpoint:
		return "", "it belongs to the health check: write it below [services.health_check]"
	case of == "health_check" && isService && path[0].Key != defaultsKey:
		return "", "it belongs to the service: write it above [services.health_check]"
	case of == "" && (key == "service" || key == "Services" || key == "Service"):
		return "", "did you mean [[services]]?"
	case of == "" && isService:
		return "", "it belongs to a service: write it below [[services]]" + tablesHint(key)
	case of == "services" && isPort && !isEndpoint:
		return "", "it belongs to a port: ports = [{ ... }]"
	case of == "services" && isEndpoint && !isPort:
		return "", "it belongs to an endpoint: endpoints = [{ ... }]"
	case (of == "ports" || of == "endpoints") && isService:
		return "", fmt.Sprintf("it belongs to the service: write it above [[services.%s]]", of)
	}
	return "", ""
}

func hasKey[T any](fields []decode.Field[T], key string) bool {
	return slices.ContainsFunc(fields, func(f decode.Field[T]) bool { return f.Key == key })
}

// tablesHint says how a list of tables is written in a service.
func tablesHint(key string) string {
	if key == "ports" || key == "endpoints" {
		return fmt.Sprintf(", its tables as [[services.%s]]", key)
	}
	return ""
}

// reportKeysAtRoot reports a root that has no services, but the keys of one, and
// returns what else it has.
func reportKeysAtRoot(r *decode.Reader, root map[string]any) map[string]any {
	rest := maps.Clone(root)
	maps.DeleteFunc(rest, func(key string, _ any) bool { return hasKey(serviceFields, key) })
	if len(rest) < len(root) {
		r.Fault("the keys of a service are not below [[services]]", `write [[services]] above them, in JSON {"services": [{ ... }]}`)
	}
	return rest
}

// isMisspelt reports whether a root without services has them by another name,
// which is reported as that of an unknown key.
func isMisspelt(root map[string]any) bool {
	for key := range root {
		if _, hint := keyHint(nil, key); hint != "" || source.Nearest(key, []string{"services"}) != "" {
			return true
		}
	}
	return false
}

// missingHint says what to write in a file without services. To write that there
// are none is no advice for one that says something: it would remove them all.
func missingHint(root map[string]any) string {
	for key := range root {
		if key != schemaKey {
			return "services are written below [[services]]"
		}
	}
	return noServices
}

// portText is how other programs write a port: 80, 80:8080 or 53/udp.
var portText = regexp.MustCompile(`^(\d{1,5})(?::(\d{1,5}))?(?:/(tcp|udp|sctp))?$`)

// portTable translates a port in the notation of other programs to a table, or returns "". The table has a name because a
// service with several ports needs one.
func portTable(text string) string {
	m := portText.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return ""
	}
	out := fmt.Sprintf("{ name = %q, port = %s", "port-"+m[1], m[1])
	if m[2] != "" && m[2] != m[1] {
		out += ", target_port = " + m[2]
	}
	if m[3] != "" && m[3] != "tcp" {
		out += fmt.Sprintf(", protocol = %q", m[3])
	}
	return out + " }"
}

// portHint returns the hint for a value that should be the table of a port.
func portHint(v any) string {
	switch v := v.(type) {
	case int64:
		return "write " + cmp.Or(portTable(strconv.FormatInt(v, 10)), "a table, such as { port = 80 }")
	case string:
		if table := portTable(v); table != "" {
			return "write " + table
		}
		if strings.Contains(v, "-") {
			return fmt.Sprintf("want a table: { port = %s }", source.Excerpt(v))
		}
		return "want a table, such as { port = 80, target_port = 8080 }"
	}
	return ""
}

// portsHint returns the hint for a value that should be the list of ports.
func portsHint(v any) string {
	switch v := v.(type) {
	case int64:
		if v > 0 && v <= 65535 {
			return fmt.Sprintf("write ports = [{ port = %d }]", v)
		}
	case string:
		var tables []string
		for _, word := range commaWords(v) {
			tables = append(tables, portTable(word))
		}
		if len(tables) > 0 && !slices.Contains(tables, "") {
			return "write ports = [" + strings.Join(tables, ", ") + "]"
		}
	case map[string]any:
		return "want a list of tables: write [[services.ports]]"
	}
	return ""
}

// commaWords splits a text at commas and blanks. It returns nothing for a long text, which a hint does not quote.
func commaWords(text string) []string {
	if len(text) > 200 {
		return nil
	}
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' })
}

// protocolHint returns the hint for several protocols in one string.
func protocolHint(v any) string {
	text, _ := v.(string)
	words := strings.FieldsFunc(strings.ToLower(text), func(c rune) bool { return strings.ContainsRune("/,+& ", c) })
	if len(words) < 2 || len(words) > 3 {
		return ""
	}
	for i, w := range words {
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, w) {
			return ""
		}
		words[i] = strconv.Quote(w)
	}
	return "write protocol = [" + strings.Join(words, ", ") + "]"
}

// checkHint returns the hint for a value that should be the table of a health check.
func checkHint(v any) string {
	switch v := v.(type) {
	case []map[string]any, []any:
		return "want one table, in TOML below a header in one pair of brackets"
	case string:
		if slices.Contains(source.CheckTypes, v) || v == "none" {
			return fmt.Sprintf("write health_check = { type = %q }", v)
		}
	case bool:
		if v {
			return `write health_check = { type = "tcp" }, which connects; other types are ` + source.Either(source.CheckTypes[1:])
		}
		return `write health_check = { type = "none" }, or leave it out`
	}
	return ""
}

// masqueradeHint and affinityHint return the word that true or false stands for.
func masqueradeHint(v any) string {
	return instead(v, `write masquerade = "all", or "auto" for sources that are not local`, `write masquerade = "never"; the other values are auto and all`)
}

func affinityHint(v any) string {
	return instead(v, `write session_affinity = "client_ip"`, `write session_affinity = "none", or leave it out`)
}

func instead(v any, yes, no string) string {
	switch v {
	case true:
		return yes
	case false:
		return no
	}
	return ""
}

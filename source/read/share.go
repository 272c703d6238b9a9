package read

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A share is what services of one text may claim.
type share struct {
	*Owner        // nil: all but what texts of servers need an owner for
	name   string // where svcproxy.toml has it
	from   Origin
	asRoot bool // programs of checks would run as root
}

// mostRefused is how many problems of one service are looked for: more than decode.Cap keeps.
const mostRefused = 1001

// Shared reports whether there are owners.
func (rules Rules) Shared() bool { return rules.Owners != nil && len(rules.Owners()) > 0 }

// shareOf returns the share of the text at a path; nil: it may claim everything. Of a text that matches no owner it
// returns the fault that it may claim nothing.
func (rules Rules) shareOf(at string) (*share, *source.Fault) {
	var owners []Owner
	if rules.Owners != nil && !rules.From.Accepted {
		owners = rules.Owners()
	}
	switch {
	case rules.From.Accepted, len(owners) == 0 && rules.From.URL == "":
		return nil, nil
	case len(owners) == 0:
		return &share{from: rules.From, asRoot: rules.GuardPrograms}, nil
	}
	i := ownerOf(owners, filepath.Base(at), rules.From)
	if i < 0 {
		return nil, unowned(owners, at, rules.From)
	}
	return &share{&owners[i], ownerName(i), rules.From, rules.GuardPrograms}, nil
}

func ownerName(i int) string { return fmt.Sprintf("owners[%d] in %s", i, SettingsName) }

// unowned is the fault of a text that matches no owner.
func unowned(owners []Owner, at string, from Origin) *source.Fault {
	f := &source.Fault{Pos: source.Position{File: at}}
	switch {
	case from.URL != "" && !isPlainURL(from.URL):
		f.Msg = "no [[owners]] in " + SettingsName + " has this source, so it may claim nothing"
		f.Hint = `write its URL without ".", ".." and "//"`
	case from.URL != "":
		f.Msg = "no [[owners]] in " + SettingsName + " has this source, so it may claim nothing"
		f.Hint = "write [[owners]] with " + source.Excerpt(from.URL) + " in sources"
	case from.Loose && !from.Elsewhere:
		f.Msg = "others than its owner may write this file, so it may claim nothing"
		f.Hint = "chmod go-w"
	case !from.Owned && !from.Elsewhere:
		f.Msg = "a link to this file belongs neither to root nor to the owner of the file, so it may claim nothing"
		f.Hint = "give the link the owner of the file (chown -h), or put the file itself in its place"
	default:
		f.Msg = fmt.Sprintf("no [[owners]] in %s has a file of this name and of user %d, so it may claim nothing", SettingsName, from.UID)
		f.Hint = missed(owners, filepath.Base(at), from)
	}
	return f
}

// missed says which names a user may have, or else who may have the name of a file.
func missed(owners []Owner, name string, from Origin) string {
	named := slices.IndexFunc(owners, func(o Owner) bool { return len(o.Users) > 0 && len(o.Files) > 0 && o.hasUser(from) })
	if named >= 0 {
		return fmt.Sprintf("files of user %d are called %s (owners[%d])", from.UID, excerpts(owners[named].Files), named)
	}
	i := slices.IndexFunc(owners, func(o Owner) bool { return o.hasFile(name) })
	if i < 0 {
		return "write [[owners]] with " + source.Excerpt(name) + " in files"
	}
	users := excerpts(owners[i].Users)
	if !slices.ContainsFunc(owners[i].Users, func(name string) bool { _, ok := userID(name); return ok }) {
		return fmt.Sprintf("/etc/passwd has no user %s: write the number in users of owners[%d]", users, i)
	}
	return fmt.Sprintf("files of this name are of user %s (owners[%d]): chown it", users, i)
}

// refuse returns what a service claims outside of the share.
func (sh *share) refuse(s *source.Service) []source.Problem {
	var r refusals
	if sh.from.URL != "" && s.EndpointsFrom != "" && !isURL(s.EndpointsFrom) {
		r.add("a text of a server reads no file of this host", "write its endpoints here", ListKey+"_from")
	}
	if sh.Owner != nil {
		sh.refuseNamespace(s, &r)
		sh.refuseAddresses(s, &r)
		sh.refuseNodePorts(s, &r)
		sh.refuseList(s, &r)
	}
	sh.refuseDeeds(s, &r)
	return r
}

// refusals are problems of one service.
type refusals []source.Problem

func (r *refusals) add(msg, hint string, at ...any) {
	if len(*r) < mostRefused {
		*r = append(*r, source.Problem{Path: source.At(at...), Msg: msg, Hint: hint})
	}
}

// none is the hint where a share has nothing of a kind.
const none = "leave it out: it has none"

func (sh *share) refuseNamespace(s *source.Service, r *refusals) {
	if sh.hasNamespace(s.Namespace) {
		return
	}
	hint := "this file can have no service: it has none"
	if len(sh.Namespaces) > 0 {
		hint = "want namespace = " + excerpts(sh.Namespaces)
	}
	r.add("namespace "+source.Excerpt(s.Namespace)+" is outside of namespaces of "+sh.name, hint, "namespace")
}

func (sh *share) refuseAddresses(s *source.Service, r *refusals) {
	hint := ""
	for _, list := range s.AddressLists() {
		for i, a := range list.Addrs {
			switch {
			case len(*r) == mostRefused:
				return
			case !a.IsValid() || sh.hasAddress(a):
			default:
				if hint == "" {
					hint = sh.wantAddress()
				}
				r.add(a.String()+" is outside of addresses of "+sh.name, hint, list.Key, i)
			}
		}
	}
}

func (sh *share) wantAddress() string {
	if len(sh.Addresses) == 0 {
		return none
	}
	words := make([]string, len(sh.Addresses))
	for i, p := range sh.Addresses {
		words[i] = p.String()
	}
	return "want an address of " + excerpts(words)
}

func (sh *share) refuseNodePorts(s *source.Service, r *refusals) {
	hint := none
	if sh.NodePorts != (PortRange{}) {
		hint = "want " + sh.NodePorts.String()
	}
	for i, p := range s.Ports {
		if p.NodePort != 0 && !sh.NodePorts.Has(p.NodePort) {
			r.add(fmt.Sprintf("node port %d is outside of node_ports of %s", p.NodePort, sh.name), hint, "ports", i, "node_port")
		}
	}
	if n := s.HealthCheckNodePort; n != 0 && !sh.NodePorts.Has(n) {
		r.add(fmt.Sprintf("health_check_node_port %d is outside of node_ports of %s", n, sh.name), hint, "health_check_node_port")
	}
}

// refuseList refuses a list of endpoints that is not one of the owner's files: who writes a list says where the service
// leads to.
func (sh *share) refuseList(s *source.Service, r *refusals) {
	if s.EndpointsFrom == "" || isURL(s.EndpointsFrom) || sh.from.URL != "" || sh.hasFile(s.EndpointsFrom) {
		return
	}
	hint := none
	if len(sh.Files) > 0 {
		hint = "want a list whose name matches " + excerpts(sh.Files)
	}
	r.add(source.Excerpt(s.EndpointsFrom)+" is outside of files of "+sh.name, hint, ListKey+"_from")
}

// isURL reports whether endpoints_from is to be fetched.
func isURL(endpointsFrom string) bool { return strings.Contains(endpointsFrom, "://") }

// refuseDeeds refuses what needs a permission.
func (sh *share) refuseDeeds(s *source.Service, r *refusals) {
	if runsProgram(s) {
		if why, hint := sh.forbids(mayExec); why != "" {
			r.add(noProgram+why, hint, "health_check", "command")
		}
	}
	if s.Announce != 0 {
		if why, hint := sh.forbids(mayAnnounce); why != "" {
			r.add("svcproxy announces nothing of this file: "+why, hint, "announce")
		}
	}
	if isURL(s.EndpointsFrom) {
		if why, hint := sh.forbids(mayFetch); why != "" {
			r.add("svcproxy fetches nothing for this file: "+why, hint, ListKey+"_from")
		}
	}
}

// forbids says why the share does not have a permission, and what to do; empty: it has it.
func (sh *share) forbids(permission string) (why, hint string) {
	server := sh.from.URL != ""
	switch {
	case sh.Owner == nil:
		return "it is from a server, and " + SettingsName + " has no [[owners]]",
			fmt.Sprintf("leave it out, or sign the text and write [[owners]] with its URL in sources and allow = [%q]", permission)
	case !slices.Contains(sh.Allow, permission):
		return fmt.Sprintf("%q is not in allow of %s", permission, sh.name), "leave it out, or add it there"
	case server && !sh.from.Signed:
		return fmt.Sprintf("allow of %s is for signed texts of servers, and this one is not signed", sh.name), "leave it out, or sign the text"
	case server && permission == mayExec && sh.asRoot:
		return "it is from a server, and its programs would run as root", "set exec_user in [health] of " + SettingsName
	}
	return "", ""
}

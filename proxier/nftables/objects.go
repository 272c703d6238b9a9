package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// maxListed is how many elements of a set Objects looks for; slots beyond are not.
const maxListed = 1024

// Objects returns what our table should have for a State, which holds one frontend, and
// whether it is there: the chains on the way of its packets, and its elements. It reads no
// more of the table than that.
func Objects(_ context.Context, st *policy.State) ([]proxier.Object, error) {
	d := layout.Dialects[st.Family]
	conn, err := nft.Dial()
	if err != nil {
		return nil, fmt.Errorf("looking for our objects: %w", err)
	}
	defer conn.Close()
	have, err := conn.List(d.Table())
	if err != nil {
		return nil, fmt.Errorf("looking for our objects: %w", err)
	}
	table := "table " + d.Keyword + " " + layout.TableName
	if have == nil || have.Dormant {
		return []proxier.Object{{Name: table}}, nil
	}
	c := layout.Render(st)
	objects, err := elementObjects(conn, c, have)
	for _, ch := range c.Chains {
		is := have.Chains[ch.Name]
		present := is != nil && (ch.Hook == nil || is.Hook != nil) && len(have.Rules[ch.Name]) > 0
		objects = append(objects, proxier.Object{Name: "chain " + ch.Name, Present: present})
	}
	return append([]proxier.Object{{Name: table, Present: true}}, objects...), err
}

func elementObjects(conn *nft.Conn, c *layout.Content, have *nft.Listing) (list []proxier.Object, err error) {
	sets := slices.SortedFunc(maps.Keys(c.Sets), layout.Set.Compare)
	for _, s := range sets {
		if s.IsDynamic() {
			continue
		}
		rec := c.Sets[s]
		there := make([]bool, min(rec.Count(), maxListed))
		if have.Sets[s.Name()] != nil {
			err := conn.Get(c.Table(), s.Name(), len(there), rec.Key, func(i int, e *nft.Element) {
				there[i] = len(e.Data) == 0 || string(e.Data) == string(rec.Data(i))
			})
			if err != nil {
				return list, fmt.Errorf("looking for our objects: %w", err)
			}
		}
		list = append(list, summary(s, c, there)...)
	}
	return list, nil
}

// summary names a set with its elements, or those that are not there.
func summary(s layout.Set, c *layout.Content, there []bool) []proxier.Object {
	var missing []proxier.Object
	for i, present := range there {
		if !present {
			text := strings.TrimSpace(layout.ElementText(s, c.Fam, c.Sets[s].Element(i)))
			missing = append(missing, proxier.Object{Name: "element " + s.Name() + " { " + text + " }"})
		}
	}
	if len(missing) > 0 {
		return missing
	}
	name := "set " + s.Name()
	if len(there) > 1 {
		name = fmt.Sprintf("%s (%d elements)", name, len(there))
	}
	return []proxier.Object{{Name: name, Present: true}}
}

// Remembered returns the endpoint of a pool that session affinity keeps for a client; nil: none.
func Remembered(_ context.Context, p *policy.Pool, client netip.Addr) (*proxier.Remembered, error) {
	fam := policy.FamilyOf(client)
	conn, err := nft.Dial()
	if nft.NotSupported(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables, %s: %w", fam, err)
	}
	pool := layout.PoolHash(p)
	record, err := getElement(conn, fam, layout.Affinity, layout.PutNumber(layout.PutAddr(nil, client), pool))
	var owner nft.Element // of the ticket that the record has
	if err == nil && len(record.Data) == 4 {
		owner, err = getElement(conn, fam, layout.TicketOwner, slices.Concat(layout.PutNumber(nil, pool), record.Data))
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, fmt.Errorf("nftables, %s: reading which endpoint a client keeps: %w", fam, err)
	}
	if len(owner.Data) != 4 {
		return nil, nil
	}
	i := slices.Index(layout.EndpointIDs(p), binary.NativeEndian.Uint32(owner.Data))
	if i < 0 {
		return nil, nil
	}
	return &proxier.Remembered{Target: p.Targets[i].AddrPort(), Left: min(record.Expires, p.Affinity)}, nil
}

// getElement returns an element of a set; without data: there is none.
func getElement(conn *nft.Conn, fam policy.Family, s layout.Set, key []byte) (found nft.Element, err error) {
	err = conn.Get(layout.Dialects[fam].Table(), s.Name(), 1, func(int) []byte { return key }, func(_ int, e *nft.Element) {
		found = nft.Element{Data: slices.Clone(e.Data), Expires: e.Expires}
	})
	return found, err
}

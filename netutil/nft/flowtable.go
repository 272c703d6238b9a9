package nft

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Flowtable sends packets of the connections in it on at ingress of its devices, before
// they meet any rule. Least kernel 4.16.
type Flowtable struct {
	Name     string
	Priority int32    // at ingress
	Devices  []string // names, sorted; the kernel takes out one that is removed, and refuses the 256th (NFT_NETDEVICE_MAX)
	Offload  bool     // hardware does it; the kernel refuses a device that cannot. Least kernel 5.5
	Counter  bool     // connection tracking counts these packets, too. Least kernel 5.7
}

// FlowsRemovable reports whether connection tracking of this kernel removes an entry whose
// connection is in a flow table, which takes the connection out of it. Linux 6.4 was the first to do
// so, and 6.1.32 of the older ones that are kept. Distributions call any 6.1 of theirs 6.1.0: Debian says
// elsewhere which it is, and that of others counts as newer.
func FlowsRemovable() bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && releaseRemovesFlows(unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]))
}

// releaseRemovesFlows is FlowsRemovable for what uname -r and uname -v say, as in "6.1.0-18-amd64" and
// "#1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)".
func releaseRemovesFlows(release, version string) bool {
	debian := debianVersion(version)
	var major, minor, patch int
	if n, _ := fmt.Sscanf(cmp.Or(debian, release), "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return false
	}
	if major == 6 && minor == 1 {
		return patch == 0 && debian == "" || patch >= 32
	}
	return major > 6 || major == 6 && minor >= 4
}

// debianVersion returns the version of Debian's package that uname -v names, without its epoch, as
// Raspberry Pi OS has one; empty: none.
func debianVersion(version string) string {
	_, version, _ = strings.Cut(version, " Debian ")
	version, _, _ = strings.Cut(version, " ")
	if _, after, found := strings.Cut(version, ":"); found {
		return after
	}
	return version
}

// Equal reports whether two flow tables have the same definition. Either may be nil.
func (f *Flowtable) Equal(o *Flowtable) bool {
	if f == nil || o == nil {
		return f == o
	}
	return f.Name == o.Name && f.Priority == o.Priority && slices.Equal(f.Devices, o.Devices) &&
		f.Offload == o.Offload && f.Counter == o.Counter
}

// From <linux/netfilter/nf_tables.h>.
const (
	flowtableName     = 2 // NFTA_FLOWTABLE_NAME
	flowtableHook     = 3
	flowtableFlags    = 7
	flowtableNumber   = 1 // NFTA_FLOWTABLE_HOOK_NUM
	flowtablePriority = 2
	flowtableDevices  = 3
	deviceName        = 1 // NFTA_DEVICE_NAME
	flowtableHW       = 1 // NFT_FLOWTABLE_HW_OFFLOAD
	flowtableCounter  = 2
	flowOffloadName   = 1 // NFTA_FLOW_TABLE_NAME
)

func (f *Flowtable) flags() (flags uint32) {
	if f.Offload {
		flags |= flowtableHW
	}
	if f.Counter {
		flags |= flowtableCounter
	}
	return flags
}

// AddFlowtable adds a flow table.
func (b *Batch) AddFlowtable(f *Flowtable) {
	b.message(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f.Name, func(m []byte) []byte {
		if flags := f.flags(); flags != 0 { // older kernels refuse the attribute
			m = putUint32(m, flowtableFlags, flags)
		}
		hook := len(m)
		m = startNest(m, flowtableHook)
		m = putUint32(m, flowtableNumber, unix.NF_NETDEV_INGRESS)
		m = putUint32(m, flowtablePriority, uint32(f.Priority))
		devices := len(m)
		m = startNest(m, flowtableDevices)
		for _, name := range f.Devices {
			m = putString(m, deviceName, name)
		}
		return endNest(endNest(m, devices), hook)
	})
}

// DeleteFlowtable removes a flow table, which no rule may refer to.
func (b *Batch) DeleteFlowtable(name string) { b.message(unix.NFT_MSG_DELFLOWTABLE, 0, name, nil) }

// FlowOffload returns the expression that puts the connection of a packet into a flow table.
func FlowOffload(table string) expr.Any {
	return raw{name: flowOffload, data: putString(nil, flowOffloadName, table)}
}

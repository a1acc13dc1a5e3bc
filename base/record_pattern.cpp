// SPDX-License-Identifier: Apache-2.0
#include "base/record_pattern.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "base/job_folder.h"
#include "base/live_folder.h"

namespace deft {
namespace {

bool is_folder(const char* path) {
    struct stat status {};
    return path != nullptr && path[0] == '/' && ::stat(path, &status) == 0 &&
           S_ISDIR(status.st_mode);
}

}  // namespace

// Those of linux/magic.h, of statfs(2), and of file systems outside the kernel, as their own
// sources name them. FUSE may be anything; what clusters have behind it is another machine.
bool is_network_file_system(long type) {
    static constexpr std::array<unsigned long, 15> kTypes{
        NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC,
        0xFF534D42,  // CIFS
        0xFE534D42,  // SMB2
        0x0BD00BD0,  // Lustre
        0x47504653,  // GPFS
        0x19830326,  // BeeGFS
        CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC, CODA_SUPER_MAGIC, V9FS_MAGIC, OCFS2_SUPER_MAGIC,
        0x01161970,  // GFS2
        0xAAD7AAEA,  // PanFS
        0x65735546,  // FUSE
    };
    // Numbers above 2^31 come with their sign.
    const auto plain = static_cast<unsigned long>(type) & 0xFFFFFFFF;
    return std::find(kTypes.begin(), kTypes.end(), plain) != kTypes.end();
}

std::string record_pattern(const Config& config) {
    const Setting& setting = config.setting(Key::Out);
    struct statfs here {};
    if (setting.source != ValueSource::Default || setting.text.starts_with('/') ||
        ::statfs(in_job_folder(".").c_str(), &here) != 0 ||
        !is_network_file_system(static_cast<long>(here.f_type))) {
        return setting.text;
    }
    const char* const own = std::getenv("TMPDIR");
    const uid_t user = ::geteuid();
    if (is_folder(own) && std::string_view(own) != "/tmp") {
        return std::string(own) + "/" + setting.text;
    }
    // Everybody may make files in /tmp, also ones with the names that records have.
    const std::string folder = "/tmp/deft-" + std::to_string(user);
    (void)::mkdir(folder.c_str(), 0700);
    return is_private(folder, user) ? folder + "/" + setting.text : setting.text;
}

}  // namespace deft
